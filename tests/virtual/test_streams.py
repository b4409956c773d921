"""Streams on the virtual clock: every sample once, and the numbers of a plain loop."""

from collections import Counter
from itertools import islice

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from torch import nn
from torch.utils.data import IterableDataset

import manyhands as mh
from manyhands.reports import measure
from manyhands.strategies import strategy

SAMPLES, BATCH = 1001, 48


class Points(IterableDataset):
    """Pairs of points and their numbers, in a fixed order, with noise drawn while reading."""

    def __init__(self, samples: int | None = SAMPLES) -> None:
        self.samples = samples

    def __iter__(self):
        generator = torch.Generator().manual_seed(3)
        number = 0
        while self.samples is None or number < self.samples:
            point = torch.randn(4, generator=generator, dtype=torch.float64)
            noise = torch.rand(4, dtype=torch.float64)
            yield point + 0.01 * noise, number
            number += 1


def a_job(seen: list[int] | None = None, **given) -> mh.Job:
    def loss(outputs: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        if seen is not None and torch.is_grad_enabled():
            seen.extend(numbers.tolist())
        return F.mse_loss(outputs[:, 0], (numbers % 7).double())

    fields = {
        "model": lambda: nn.Linear(4, 1).double(),
        "optimizer": lambda model: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
        "loss": loss,
        "data": Points(),
        "global_batch": BATCH,
        "samples": 10**6,
        "metrics": (),
    }
    return mh.Job(**{**fields, **given})


def by_hand(job: mh.Job, samples: list) -> dict[str, torch.Tensor]:
    """The same training in plain PyTorch, on samples as they were drawn."""
    torch.manual_seed(job.seed)
    model = job.model()
    steps = job.optimizer(model)
    rate = steps.param_groups[0]["lr"]
    for start in range(0, len(samples), BATCH):
        inputs, targets = torch.utils.data.default_collate(samples[start : start + BATCH])
        steps.zero_grad()
        job.loss(model(inputs), targets).backward()
        steps.param_groups[0]["lr"] = rate * len(targets) / BATCH
        steps.step()
    return dict(model.state_dict())


def drawn(job: mh.Job, count: int) -> list:
    """The samples as a run reads them: each with its own seed."""
    from manyhands.seeding import Seeded, epoch_seed

    seeded = Seeded(job.data, None)
    with seeded.drawing():
        return seeded.first(epoch_seed(job.seed, 0), count)


@pytest.mark.parametrize(
    ("how", "workers"),
    [
        ("asynchronous()", 1),
        ("ssp(staleness=2)", 1),
        ("synchronous()", 1),
        ("synchronous()", 2),
        ("synchronous(servers=2)", 3),
        ("softsync(wait_for=3)", 3),
    ],
)
def test_a_stream_trains_as_a_plain_loop_over_it(virtually, how: str, workers: int) -> None:
    job = a_job()
    done = virtually(job, strategy(how), workers=workers)
    expected = by_hand(job, drawn(job, SAMPLES))
    state = done.run.state_dict()
    worst = max((state[name] - expected[name]).abs().max().item() for name in expected)
    assert worst <= 1e-9
    assert done.run.samples == SAMPLES


@pytest.mark.parametrize(
    "how",
    [
        "asynchronous()",
        "synchronous()",
        "ssp(staleness=3)",
        "softsync(wait_for=2)",
        "local_sgd(every=3)",
        "diloco(every=4)",
        "easgd(every=2)",
        "gossip()",
        "hogwild()",
        "averaging()",
        "hierarchical(islands=2)",
        "broadcast()",
    ],
)
@pytest.mark.parametrize("samples", [SAMPLES, 960, 49])
def test_every_sample_of_a_stream_is_trained_on_once(virtually, how: str, samples: int) -> None:
    seen: list[int] = []
    workers = 4 if how.startswith("hierarchical") else 3
    done = virtually(a_job(seen, data=Points(samples)), strategy(how), workers=workers)
    assert Counter(seen) == Counter(range(samples))
    assert done.run.samples == samples


def test_a_crashed_worker_loses_no_sample_of_a_stream(virtually) -> None:
    seen: list[int] = []
    faults = "[crash(worker=1, at=0.1, restart=0.3), crash(worker=2, at=0.18)]"
    done = virtually(
        a_job(seen), strategy("asynchronous()"), workers=3, faults=faults, seconds="constant(0.01)"
    )
    assert set(seen) == set(range(SAMPLES))
    assert done.run.samples == SAMPLES


def test_an_endless_stream_ends_with_the_limit_of_samples(virtually) -> None:
    seen: list[int] = []
    done = virtually(a_job(seen, data=Points(None), samples=500), strategy("ssp()"), workers=2)
    assert sorted(seen) == list(range(500))
    assert done.run.samples == 500


def test_validation_follows_the_end_of_a_stream(virtually) -> None:
    job = a_job(validation=list(islice(Points(), 8)), evaluate_every=mh.every(samples=480))
    done = virtually(job, strategy("asynchronous()"), workers=2)
    assert measure(done.run.trace).validation["loss"].samples == (480, 960, 1001)


def test_few_workers_at_first_need_epochs(virtually) -> None:
    early = strategy("broadcast(early_workers=1, early_epochs=0.5)")
    with pytest.raises(ValueError, match="a stream has none: leave early_workers out"):
        virtually(a_job(), early, workers=3)
