"""A model starts from existing weights, whole or in parts, and from no others than its own."""

from dataclasses import replace

import pytest
import safetensors.torch
import torch
from torch import nn, optim
from torch.utils.data import TensorDataset

from manyhands.files.checkpoint import save_model
from manyhands.files.weights import StartWeights
from manyhands.job import Job
from manyhands.models import GPT
from manyhands.parameters.gradients import build
from manyhands.parameters.initial.deferred import on_meta, outline_or_whole
from manyhands.parameters.initial.shard_values import begin
from manyhands.parameters.initial.start import (
    check_job_start,
    check_pinned,
    check_start,
    start_digest,
)
from manyhands.seeding import random_state, seed_all


class Model(nn.Module):
    """With tied parameters and buffers, one of which is not stored."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 30)
        self.norm = nn.BatchNorm1d(30)
        self.head = nn.Linear(30, 40)
        self.head.weight = self.embedding.weight
        self.frozen = nn.Linear(30, 30).requires_grad_(False)
        self.register_buffer("scratch", torch.randn(3), persistent=False)


def layers() -> nn.Module:
    return nn.Sequential(*(nn.Linear(120, 120) for _ in range(12)))


def job_of(model, start=None) -> Job:
    return Job(
        model=model,
        optimizer=lambda model: optim.Adam(model.parameters()),
        loss=nn.functional.cross_entropy,
        data=TensorDataset(torch.zeros(2, 1), torch.zeros(2)),
        global_batch=2,
        epochs=1,
        metrics=(),
        seed=5,
        start=start,
    )


def made(job: Job) -> nn.Module:
    seed_all(job.seed)
    return build(job)


@pytest.fixture
def trained(tmp_path):
    """A model with other values than the job's own, and its file."""
    seed_all(77)
    model = Model()
    model.norm.running_mean.normal_()
    save_model(model, tmp_path / "model.safetensors")
    return model, tmp_path / "model.safetensors"


def test_values_are_those_of_the_file_and_the_rest_is_as_without(trained):
    model, path = trained
    without = made(job_of(Model))
    after = random_state()
    with_start = made(job_of(Model, path))
    assert torch.equal(random_state()[0], after[0])
    for name, tensor in model.state_dict().items():
        assert torch.equal(with_start.state_dict()[name], tensor), name
    assert torch.equal(with_start.scratch, without.scratch)
    assert with_start.head.weight is with_start.embedding.weight
    assert not with_start.frozen.weight.requires_grad


def test_a_tied_tensor_may_be_stored_once(trained, tmp_path):
    model, _ = trained
    state = {name: one for name, one in model.state_dict().items() if name != "head.weight"}
    safetensors.torch.save_file(state, tmp_path / "once.safetensors")
    started = made(job_of(Model, tmp_path / "once.safetensors"))
    assert torch.equal(started.head.weight, model.head.weight)


def test_two_values_of_a_tied_tensor_are_refused(trained, tmp_path):
    model, _ = trained
    state = {name: one.clone() for name, one in model.state_dict().items()}
    state["head.weight"] += 1
    safetensors.torch.save_file(state, tmp_path / "two.safetensors")
    with pytest.raises(ValueError, match=r"'embedding.weight' and 'head.weight' are one tensor"):
        made(job_of(Model, tmp_path / "two.safetensors"))


def test_another_type_is_converted(trained, tmp_path):
    model, _ = trained
    state = {name: one.clone() for name, one in model.state_dict().items()}
    state["frozen.weight"] = state["frozen.weight"].bfloat16()
    safetensors.torch.save_file(state, tmp_path / "half.safetensors")
    started = made(job_of(Model, tmp_path / "half.safetensors"))
    assert started.frozen.weight.dtype == torch.float32
    assert torch.equal(started.frozen.weight, state["frozen.weight"].float())


@pytest.mark.parametrize("held", [1 << 10, 1 << 14, 1 << 26])
@pytest.mark.parametrize(
    "model", [Model, lambda: GPT(vocabulary=65, width=48, layers=3, heads=4, length=32), layers]
)
def test_shards_have_the_values_of_the_file(tmp_path, model, held):
    seed_all(77)
    save_model(model(), tmp_path / "model.safetensors")
    job = job_of(model, tmp_path)
    whole = dict(made(job).named_parameters()) | dict(made(job).named_buffers())
    divided = set()
    for number in range(3):
        values = begin(job, number, 3, held)
        shard = values.layout.shards[number]
        for piece in (*shard.parameters, *shard.buffers):
            flat = whole[piece.name].detach().reshape(-1)
            assert torch.equal(piece.view(values.bytes).view(-1), flat[piece.start : piece.stop])
            divided.add(piece.name)
    assert divided >= {name for name, one in whole.items() if one.requires_grad}


def test_a_large_model_is_still_made_in_parts(tmp_path):
    # Reading the file must not take the memory that is watched.
    save_model(layers(), tmp_path / "model.safetensors")
    seed_all(5)
    job = job_of(layers, tmp_path)
    size = sum(one.nbytes for one in layers().state_dict().values())
    assert isinstance(outline_or_whole(lambda: build(job), size * 5 // 4), nn.Module)
    seed_all(5)
    assert not isinstance(outline_or_whole(lambda: build(job), size // 2), nn.Module)


def test_a_model_on_meta_stays_there(trained):
    _, path = trained
    assert on_meta(lambda: build(job_of(Model, path))).head.weight.is_meta


class Larger(Model):
    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(31, 30)
        self.added = nn.Linear(2, 2)
        del self.norm


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_differences_are_named(trained, device):
    _, path = trained
    with torch.device(device):
        model = Larger()
    with pytest.raises(ValueError, match="does not fit the model") as refused:
        check_start(job_of(Larger, path), model)
    words = str(refused.value)
    assert "2 that the model has, and the weights lack: added.weight, added.bias" in words
    assert "5 that the weights have, and the model lacks: norm." in words
    assert "1 that have another shape: frozen.weight: [30, 30] in place of [30, 31]" in words
    with pytest.raises(ValueError, match="does not fit the model"):
        check_job_start(job_of(Larger, path))


def test_long_lists_are_cut(trained):
    _, path = trained
    with pytest.raises(ValueError, match=r"10 that the weights have.*, \S+ and 2 more"):
        check_job_start(job_of(lambda: nn.Linear(2, 2), path))


class Extra(nn.Linear):
    def __init__(self) -> None:
        super().__init__(2, 2)

    def get_extra_state(self):
        return torch.ones(1)

    def set_extra_state(self, state):
        pass


def test_a_state_that_is_not_the_models_own_is_refused(tmp_path):
    save_model(Extra(), tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="_extra_state of the model's state_dict"):
        check_job_start(job_of(Extra, tmp_path))


def test_a_check_draws_no_random_numbers(trained):
    _, path = trained
    before = random_state()
    check_job_start(job_of(Model, path))
    assert torch.equal(random_state()[0], before[0])


def test_content_is_compared_with_what_it_was(trained):
    _, path = trained
    job = job_of(Model, path)
    pinned = replace(job, start=StartWeights(str(path), start_digest(job)))
    check_pinned(pinned)
    made(pinned)
    save_model(Model(), path)
    for check in (check_pinned, made):
        with pytest.raises(ValueError, match="is not what it was at the start of the run"):
            check(pinned)


def test_a_state_dict_is_no_path():
    with pytest.raises(TypeError, match="start must be the path of existing weights, not a dict"):
        job_of(Model, {})
