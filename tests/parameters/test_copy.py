"""A worker's copy computes what autograd does, and lies where it is sent from."""

import gc
import weakref
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn
from torch.utils.data import TensorDataset

from manyhands.job import Job
from manyhands.parameters import Copy

CPU = torch.device("cpu")


class Net(nn.Module):
    """Tied, frozen, unused and normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.outer = nn.Linear(6, 6)
        self.outer.weight = self.inner.weight
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.unused = nn.Parameter(torch.ones(4))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.norm(self.inner(inputs))
        return self.frozen(self.outer(hidden.relu()))


@pytest.fixture
def job() -> Job:
    generator = torch.Generator().manual_seed(3)
    data = TensorDataset(
        torch.randn(40, 6, generator=generator), torch.randint(0, 6, (40,), generator=generator)
    )
    return Job(
        model=Net,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=F.cross_entropy,
        data=data,
        global_batch=8,
        epochs=1,
        seed=5,
    )


def oracle(job: Job) -> tuple[nn.Module, torch.Tensor]:
    """The same model by hand, after one backward pass; the loss."""
    torch.manual_seed(job.seed)
    model = job.model()
    inputs, targets = job.data.tensors  # type: ignore[attr-defined]
    loss = job.loss(model(inputs), targets)
    loss.backward()
    return model, loss


@pytest.mark.parametrize("servers", [1, 2, 3, 5])
def test_its_gradient_is_autograd_s(job: Job, servers: int) -> None:
    copy = Copy(job, servers, CPU)
    model, expected = oracle(job)
    loss = copy.gradient(*job.data.tensors, len(job.data))  # type: ignore[attr-defined]
    assert torch.equal(loss, expected)
    found: dict[str, list[torch.Tensor]] = {}
    for shard, update in zip(copy.layout.shards, copy.updates, strict=True):
        for piece in shard.parameters:
            found.setdefault(piece.name, []).append(piece.view(update).reshape(-1))
    named = dict(model.named_parameters())
    assert set(found) == {name for name, p in named.items() if p.requires_grad}
    for name, pieces in found.items():
        gradient = named[name].grad
        flat = torch.zeros(named[name].numel()) if gradient is None else gradient.reshape(-1)
        assert torch.equal(torch.cat(pieces), flat), name


def test_an_unused_parameter_has_the_gradient_zero_every_time(job: Job) -> None:
    copy = Copy(job, 1, CPU)
    (piece,) = [one for one in copy.layout.shards[0].parameters if one.name == "unused"]
    for _ in range(2):
        piece.view(copy.updates[0]).fill_(9)
        copy.gradient(*job.data.tensors, len(job.data))  # type: ignore[attr-defined]
        assert torch.equal(piece.view(copy.updates[0]), torch.zeros(4))


@pytest.mark.parametrize("servers", [1, 2, 3, 5])
def test_every_shard_is_ready_once_and_complete_when_it_is(job: Job, servers: int) -> None:
    copy = Copy(job, servers, CPU)
    inputs, targets = job.data.tensors  # type: ignore[attr-defined]
    copy.gradient(inputs, targets, len(inputs))
    final = [update.clone() for update in copy.updates]
    for update in copy.updates:
        update.fill_(255)
    seen: list[int] = []

    def ready(shard: int) -> None:
        seen.append(shard)
        for piece in copy.layout.shards[shard].parameters:
            assert torch.equal(piece.view(copy.updates[shard]), piece.view(final[shard]))

    copy.gradient(inputs, targets, len(inputs), ready)
    assert sorted(seen) == list(range(servers))


@pytest.mark.parametrize("servers", [1, 2, 3, 5])
@pytest.mark.parametrize("limit", [0.01, 1e6])
def test_a_clipped_update_is_ready_when_all_of_it_is(job: Job, servers: int, limit: float) -> None:
    copy = Copy(job, servers, CPU, clip=limit)
    model, _ = oracle(job)
    nn.utils.clip_grad_norm_(model.parameters(), limit)
    named, seen = dict(model.named_parameters()), []

    def ready(shard: int) -> None:
        seen.append(shard)
        for one in copy.layout.shards:
            for piece in one.parameters:
                gradient = named[piece.name].grad
                if gradient is not None:
                    expected = gradient.reshape(-1)[piece.start : piece.stop]
                    found = piece.view(copy.updates[one.number]).reshape(-1)
                    torch.testing.assert_close(found, expected)

    copy.gradient(*job.data.tensors, len(job.data), ready)  # type: ignore[attr-defined]
    assert sorted(seen) == list(range(servers))


def test_the_last_layers_are_ready_before_the_first(job: Job) -> None:
    def plain() -> nn.Module:
        return nn.Sequential(*(nn.Linear(6, 6) for _ in range(4)))

    copy = Copy(replace(job, model=plain), 4, CPU)
    order: list[int] = []
    copy.gradient(*job.data.tensors, len(job.data), order.append)  # type: ignore[attr-defined]
    assert order == [3, 2, 1, 0]


def test_parameters_are_computed_on_where_they_are_received(job: Job) -> None:
    copy = Copy(job, 2, CPU)
    before = copy.gradient(*job.data.tensors, len(job.data))  # type: ignore[attr-defined]
    for place in copy.parameters:
        place.zero_()
    copy.received()
    after = copy.gradient(*job.data.tensors, len(job.data))  # type: ignore[attr-defined]
    assert before != after
    assert all(not p.any() for p in copy.model.parameters() if p.requires_grad)
    assert copy.model.inner.weight is copy.model.outer.weight


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_buffers_go_out_with_the_last_shard_and_come_back(job: Job, servers: int) -> None:
    copy = Copy(job, servers, CPU)
    copy.gradient(*job.data.tensors, len(job.data))  # type: ignore[attr-defined]
    named = dict(copy.model.named_buffers())
    pieces = {piece.name: piece for piece in copy.layout.shards[-1].buffers}
    assert set(pieces) == {"norm.running_mean", "norm.running_var"}
    for name, piece in pieces.items():
        assert torch.equal(piece.view(copy.updates[-1]), named[name])
        piece.view(copy.parameters[-1]).fill_(4)
    copy.adopt_buffers()
    assert all(torch.equal(named[name], torch.full((6,), 4.0)) for name in pieces)
    assert named["norm.num_batches_tracked"] == 1


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_buffers_of_a_wider_type_than_the_parameters(job: Job, servers: int) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)
            self.odd = nn.Parameter(torch.ones(33))
            self.register_buffer("total", torch.zeros(3, dtype=torch.float64))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            self.total += 0.5
            return self.layer(inputs) * self.odd.sum()

    copy = Copy(replace(job, model=Mixed), servers, CPU)
    copy.gradient(*job.data.tensors, len(job.data))  # type: ignore[attr-defined]
    (piece,) = copy.layout.shards[-1].buffers
    sent = copy.updates[-1].clone()
    assert torch.equal(piece.view(sent), torch.full((3,), 0.5, dtype=torch.float64))
    copy.parameters[-1].copy_(sent)
    copy.model.total.zero_()
    copy.adopt_buffers()
    assert torch.equal(copy.model.total, torch.full((3,), 0.5, dtype=torch.float64))


def test_a_copy_that_nobody_holds_is_gone_and_its_model_with_it(job: Job) -> None:
    copy = Copy(job, 2, CPU)
    copy.gradient(*job.data.tensors, len(job.data))  # type: ignore[attr-defined]
    model = weakref.ref(copy.model)
    del copy
    gc.collect()
    assert model() is None


@pytest.mark.parametrize("servers", [1, 3])
def test_parts_of_a_batch_that_use_different_parameters(job: Job, servers: int) -> None:
    class Either(nn.Module):
        """Which layer computes depends on the samples."""

        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            layer = self.one if inputs[0, 0] > 0 else self.other
            return layer(inputs)

    copy = Copy(replace(job, model=Either, micro_batch=1), servers, CPU)
    inputs, targets = torch.ones(4, 6), torch.tensor([0, 1, 2, 3])
    inputs[2:] = -1
    for batch in (inputs, inputs.flip(0), inputs[:2].repeat(2, 1)):
        expected = Either()
        expected.load_state_dict(copy.model.state_dict())
        for sample, target in zip(batch.split(1), targets.split(1), strict=True):
            (F.cross_entropy(expected(sample), target) / 4).backward()
        copy.gradient(batch, targets, len(targets))
        for name, parameter in expected.named_parameters():
            found = torch.cat([piece[1] for piece in copy._gradients[name]])
            wanted = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            assert torch.allclose(found, wanted.reshape(-1), atol=1e-7), name
            # Nothing is left for the next batch to be added to.
            assert dict(copy.model.named_parameters())[name].grad is None, name
