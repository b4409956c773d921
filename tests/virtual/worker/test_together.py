"""Gradients of many workers by one call: the same run as with one call for each of them."""

import random
import sys
from collections import Counter

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn
from virtual_jobs import Done, a_job

from manyhands.job import Job
from manyhands.strategies import strategy
from manyhands.virtual.worker import shared_model
from manyhands.virtual.worker.together import Together

WORKERS = 40


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def classes(**changes: object) -> Job:
    inputs = torch.randn(600, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    given: dict[str, object] = {
        "model": two_layers,
        "data": torch.utils.data.TensorDataset(inputs, inputs[:, :3].argmax(1)),
        "loss": F.cross_entropy,
        "global_batch": 3 * WORKERS,
        "epochs": 3,
    }
    return a_job(**(given | changes))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Evaluations: how many calls, of how many gradients."""
    counted: Counter[str] = Counter()
    evaluate = Together._evaluate

    def counting(self: Together, group: list[object]) -> None:
        counted["calls"] += 1
        counted["gradients"] += len(group)
        evaluate(self, group)

    monkeypatch.setattr(Together, "_evaluate", counting)
    return counted


@pytest.fixture
def one_by_one(virtually, monkeypatch: pytest.MonkeyPatch):
    """Run a job without evaluating gradients together."""

    def run(*given: object, **more: object) -> Done:
        with monkeypatch.context() as patch:
            patch.setattr(shared_model, "LEAST_WORKERS", sys.maxsize)
            return virtually(*given, **more)

    return run


def distance(one: Done, other: Done) -> float:
    mine, its = one.run.state_dict(), other.run.state_dict()
    return max((mine[name] - its[name]).abs().max().item() for name in mine)


@pytest.mark.parametrize(
    "text",
    [
        "asynchronous()",
        "asynchronous(servers=3)",
        "synchronous()",
        "synchronous(shares=by_speed)",
        "ssp(staleness=2)",
        "softsync(wait_for=10)",
        "central_storage()",
        "averaging(every=2)",
        "diloco(every=3, fragments=2, overlap=1)",
        "hogwild()",
        "gossip(order=asynchronous)",
        "easgd(order=asynchronous)",
        "asynchronous(codec=topk(0.5))",
    ],
)
def test_the_result_is_that_of_one_gradient_after_another(
    virtually, one_by_one, calls: Counter[str], text: str
) -> None:
    about = {"workers": WORKERS, "seconds": "lognormal(0.1, cv=0.3)"}
    together = virtually(classes(), strategy(text), **about)
    assert calls["gradients"] > 5 * calls["calls"] > 0
    counted = dict(calls)
    alone = one_by_one(classes(), strategy(text), **about)
    assert dict(calls) == counted
    assert distance(together, alone) < 1e-12
    assert together.run.seconds == alone.run.seconds
    assert together.run.samples == alone.run.samples == 1800


def test_it_is_the_same_to_the_bit_whenever_it_is_repeated(virtually) -> None:
    one, other = (virtually(classes(), workers=WORKERS) for _ in range(2))
    assert distance(one, other) == 0
    assert one.digest == other.digest


def test_workers_die_and_return(virtually, one_by_one, calls: Counter[str]) -> None:
    faults = (
        "[crash(worker=3, at=0.15, restart=0.2), crash(worker=7, at=0.02), "
        "pause(worker=5, at=0.05, seconds=0.4)]"
    )
    about = {"workers": WORKERS, "seconds": "lognormal(0.1, cv=0.3)", "faults": faults}
    together = virtually(classes(), **about)
    assert calls["gradients"] > 5 * calls["calls"] > 0
    assert distance(together, one_by_one(classes(), **about)) < 1e-12


class Counting(nn.Module):
    """A loss with a buffer, as some models have."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = two_layers()
        self.norm = nn.BatchNorm1d(3).double()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.norm(self.inner(inputs))


class Choosing(nn.Module):
    """Computes something else for some inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = two_layers()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.inner(inputs) if inputs.sum() > 0 else 2 * self.inner(inputs)


class Doubling(torch.autograd.Function):
    """Without a rule for `vmap`."""

    @staticmethod
    def forward(_, inputs):
        return 2 * inputs

    @staticmethod
    def backward(_, gradient):
        return 2 * gradient


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = two_layers()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return Doubling.apply(self.inner(inputs))


def hooked() -> nn.Module:
    model = two_layers()
    model.register_forward_hook(lambda _, __, outputs: outputs * 1.5)
    return model


def some_ignored(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(outputs, targets, ignore_index=2)


def drawing(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(outputs, targets) * random.random()  # noqa: S311 - no secrets


@pytest.mark.parametrize(
    "changes",
    [
        {"model": Counting, "global_batch": 6 * WORKERS},
        {"model": lambda: nn.Sequential(two_layers(), nn.Dropout(0.3))},
        {"model": Choosing},
        {"model": Own},
        {"model": hooked},
        {"loss": some_ignored},
        {"loss": drawing},
        {"clip": 0.1},
        {"micro_batch": 1},
    ],
    ids=lambda changes: next(iter(changes.values())).__class__.__name__ + next(iter(changes)),
)
def test_what_cannot_be_evaluated_together_is_computed_one_by_one(
    virtually, one_by_one, changes: dict[str, object]
) -> None:
    job = classes(**changes)
    assert distance(virtually(job, workers=WORKERS), one_by_one(job, workers=WORKERS)) == 0


def test_targets_that_do_not_count_are_weighted_as_before(virtually, one_by_one) -> None:
    inputs = torch.randn(600, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    targets = inputs[:, :3].argmax(1)
    targets[100:130] = -100
    job = classes(data=torch.utils.data.TensorDataset(inputs, targets))
    about = (job, strategy("synchronous()"))
    one, other = virtually(*about, workers=WORKERS), one_by_one(*about, workers=WORKERS)
    assert distance(one, other) < 1e-12


def test_a_mean_over_tokens_has_their_number_as_its_weight(virtually, one_by_one, calls) -> None:
    tokens = torch.randint(0, 5, (600, 7), generator=torch.Generator().manual_seed(3))

    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(5, 4)
            self.last = nn.Linear(4, 5)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.last(self.table(inputs)).transpose(1, 2)

    job = classes(
        model=lambda: Tokens().double(),
        data=torch.utils.data.TensorDataset(tokens[:, :-1], tokens[:, 1:].contiguous()),
    )
    one, other = virtually(job, workers=WORKERS), one_by_one(job, workers=WORKERS)
    assert calls["gradients"] > 5 * calls["calls"] > 0
    assert distance(one, other) < 1e-12


def test_updates_that_are_not_finite_are_refused(virtually, one_by_one, calls) -> None:
    inputs = torch.randn(600, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    targets = inputs[:, :3].clone()
    targets[50] = float("nan")
    job = classes(
        data=torch.utils.data.TensorDataset(inputs, targets), loss=F.mse_loss, stop_on_nan=False
    )
    one, other = virtually(job, workers=WORKERS), one_by_one(job, workers=WORKERS)
    assert calls["gradients"] > 5 * calls["calls"] > 0
    assert one.world.coordinator.leases.lost == other.world.coordinator.leases.lost > 0
    assert distance(one, other) < 1e-12
