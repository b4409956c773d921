"""Parts that add up, blocks that forget and autocast, as every strategy computes them."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from manyhands.job import Job
from manyhands.models import GPT, LeNet, ResNet50V2
from manyhands.parameters import Copy
from manyhands.parameters.gradients import build
from manyhands.parameters.module_units import units

SOURCE = torch.Generator().manual_seed(0)
INPUTS = torch.randn(7, 6, generator=SOURCE)
TARGETS = torch.randint(0, 3, (7,), generator=SOURCE)


def model() -> nn.Module:
    blocks = [nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(3)]
    return nn.Sequential(*blocks, nn.Linear(6, 3))


JOB = Job(
    model=model,
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    loss=functional.cross_entropy,
    data=TensorDataset(INPUTS, TARGETS),
    global_batch=7,
    epochs=1,
)


def computed(job: Job) -> tuple[torch.Tensor, list[torch.Tensor], list[int]]:
    copy = Copy(job, 2, torch.device("cpu"))
    ready: list[int] = []
    loss = copy.gradient(INPUTS, TARGETS, len(INPUTS), ready.append)
    again = copy.gradient(INPUTS, TARGETS, len(INPUTS))
    torch.testing.assert_close(loss, again)
    return loss, [update.view(torch.float32).clone() for update in copy.updates], ready


@pytest.mark.parametrize(
    "options",
    [
        {"micro_batch": 1},
        {"micro_batch": 2},
        {"micro_batch": 7},
        {"micro_batch": 100},
        {"activation_checkpointing": True},
        {"activation_checkpointing": True, "micro_batch": 3, "clip": 0.01},
    ],
    ids=str,
)
def test_a_workers_update_is_the_same_however_it_is_computed(options):
    plain = replace(JOB, clip=options.get("clip"))
    loss, updates, ready = computed(plain)
    loss_in_parts, in_parts, ready_in_parts = computed(replace(plain, **options))
    torch.testing.assert_close(loss_in_parts, loss)
    torch.testing.assert_close(in_parts, updates)
    assert sorted(ready) == sorted(ready_in_parts) == [0, 1], "each shard is ready once"


def test_autocast_computes_in_fewer_digits_and_keeps_all_in_the_update():
    loss, updates, _ = computed(JOB)
    shorter, rounded, _ = computed(replace(JOB, autocast="bfloat16"))
    assert shorter.dtype == loss.dtype == torch.float32
    assert 1e-6 < (shorter - loss).abs() < 1e-2
    for one, other in zip(rounded, updates, strict=True):
        assert not torch.equal(one, other)
        torch.testing.assert_close(one, other, atol=2e-2, rtol=0.1)


def test_what_is_forgotten_is_not_kept_for_the_backward():
    def kept(activation_checkpointing: bool) -> int:
        sizes: list[int] = []
        torch.manual_seed(0)
        made = build(
            replace(
                JOB,
                model=lambda: GPT(width=32, layers=4),
                activation_checkpointing=activation_checkpointing,
            )
        )
        parameters = {one.data_ptr() for one in made.parameters()}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.data_ptr() not in parameters:
                sizes.append(tensor.nbytes)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            made(torch.zeros(2, 32, dtype=torch.int64))
        return sum(sizes)

    assert kept(activation_checkpointing=True) < 0.2 * kept(activation_checkpointing=False)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"micro_batch": 0}, "micro_batch must be at least 1"), ({"autocast": "float8"}, "bfloat16")],
)
def test_options_that_mean_nothing_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        replace(JOB, **options)


def test_units_are_what_repeats():
    made = GPT(layers=2)
    names = {id(module): name for name, module in made.named_modules()}
    assert [names[id(unit)] for unit in units(made)] == ["embedding", "block1", "block2", "head"]
    assert len(units(ResNet50V2(10))) == 1 + 16 + 2
    assert [type(unit).__name__ for unit in units(LeNet())] == [
        "Conv2d",
        "Conv2d",
        "Linear",
        "Linear",
    ]
    alone = nn.Linear(2, 2)
    assert units(alone) == [alone]
