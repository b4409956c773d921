"""A sampler determines the order of an epoch, alike on any number of workers."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from torch import nn
from torch.utils.data import RandomSampler, Sampler, TensorDataset, WeightedRandomSampler

import manyhands as mh
from manyhands.seeding import EpochOrder
from manyhands.strategies import strategy

SAMPLES, BATCH, EPOCHS = 60, 12, 3
INPUTS = torch.randn(SAMPLES, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
WEIGHTS = torch.linspace(0.1, 3.0, SAMPLES)


class Backwards(Sampler[int]):
    """In the reverse order, each epoch from another sample on."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 30

    def __iter__(self):
        return iter([(self.epoch - index) % SAMPLES for index in range(30)])


def a_job(sampler) -> mh.Job:
    return mh.Job(
        model=lambda: nn.Linear(5, 1).double(),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        loss=F.mse_loss,
        data=TensorDataset(INPUTS, INPUTS.sum(1, keepdim=True)),
        sampler=sampler,
        global_batch=BATCH,
        epochs=EPOCHS,
        metrics=(),
        seed=4,
    )


def by_hand(job: mh.Job) -> tuple[dict[str, torch.Tensor], int]:
    torch.manual_seed(job.seed)
    model = job.model()
    steps = job.optimizer(model)
    order, trained = EpochOrder(job), 0
    for epoch in range(EPOCHS):
        for indices in order(epoch).split(BATCH):
            steps.zero_grad()
            F.mse_loss(model(INPUTS[indices]), INPUTS[indices].sum(1, keepdim=True)).backward()
            steps.param_groups[0]["lr"] = 0.05 * len(indices) / BATCH
            steps.step()
            trained += len(indices)
    return dict(model.state_dict()), trained


SAMPLERS = [
    lambda: WeightedRandomSampler(WEIGHTS, 40),
    lambda: WeightedRandomSampler(WEIGHTS, 40, generator=torch.Generator().manual_seed(9)),
    lambda: RandomSampler(range(SAMPLES), num_samples=25),
    Backwards,
]


@pytest.mark.parametrize("make", SAMPLERS)
@pytest.mark.parametrize(("how", "workers"), [("asynchronous()", 1), ("synchronous()", 3)])
def test_all_workers_divide_what_the_sampler_draws(virtually, make, how: str, workers: int) -> None:
    done = virtually(a_job(make()), strategy(how), workers=workers)
    expected, trained = by_hand(a_job(make()))
    state = done.run.state_dict()
    assert max((state[name] - expected[name]).abs().max().item() for name in expected) <= 1e-9
    assert done.run.samples == trained == EPOCHS * len(make())


@pytest.mark.parametrize("make", SAMPLERS)
def test_an_order_depends_on_the_seed_and_the_epoch_alone(make) -> None:
    torch.manual_seed(1)
    one, other = EpochOrder(a_job(make())), EpochOrder(a_job(make()))
    forward = [one(epoch).tolist() for epoch in range(4)]
    torch.manual_seed(2)
    before = torch.get_rng_state()
    assert [other(epoch).tolist() for epoch in (3, 2, 1, 0)] == forward[::-1]
    assert torch.equal(torch.get_rng_state(), before)
    assert forward[0] != forward[1]


def test_weights_are_those_of_the_sampler() -> None:
    heavy = torch.zeros(SAMPLES)
    heavy[[3, 7]] = torch.tensor([1.0, 3.0])
    order = EpochOrder(a_job(WeightedRandomSampler(heavy, 4000)))(0)
    assert set(order.tolist()) == {3, 7}
    # 3,000 expected, with a standard deviation of 27.
    assert abs(int((order == 7).sum()) - 3000) < 150


def test_a_sampler_whose_length_is_wrong_is_named(virtually) -> None:
    class Short(Backwards):
        def __len__(self) -> int:
            return 31

    with pytest.raises(ValueError, match="has a length of 31 and returned 30 indices in epoch 0"):
        virtually(a_job(Short()), strategy("asynchronous()"), workers=1)
