"""Thousands of workers on real MNIST, in one process."""

import resource
import time
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

import manyhands as mh
from manyhands.reports import staleness


def mnist(workers: int, updates: int, hidden: int = 32, batch: int = 6) -> mh.Job:
    return mh.Job(
        model=lambda: mh.models.MLP(784, (hidden,), 10),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.5),
        loss=F.cross_entropy,
        data=mh.data.mnist("train"),
        metrics=("accuracy",),
        global_batch=workers * batch,
        samples=updates * batch,
    )


def simulate(job: mh.Job, workers: int, folder: Path) -> tuple[mh.Run, float]:
    begun = time.monotonic()
    run = mh.simulate(job, "asynchronous()", workers=workers, bandwidth="10gbit", output=folder)
    took = time.monotonic() - begun
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    steps = sum(worker.totals.steps for worker in run.trace.workers)
    print(f"{workers} workers: {steps / took:.0f} updates/s, at most {memory:.0f} MB")
    return run, took


def check(run: mh.Run, workers: int, updates: int) -> None:
    assert run.samples == updates * 6
    spread = staleness(run.trace)
    assert spread is not None
    assert spread.updates == updates
    size = sum(path.stat().st_size for path in (run.folder / "trace").iterdir())
    assert size < 20e6
    assert f"on {workers:d} virtual workers" in run.summary()


def test_two_hundred_workers(tmp_path: Path) -> None:
    run, _ = simulate(mnist(200, 2000), 200, tmp_path / "run")
    check(run, 200, 2000)
    spread = staleness(run.trace)
    assert spread is not None
    assert 180 < spread.mean < 199


@pytest.mark.slow
def test_a_thousand_workers_make_twenty_thousand_updates_within_two_minutes(tmp_path: Path) -> None:
    run, took = simulate(mnist(1000, 20_000), 1000, tmp_path / "run")
    check(run, 1000, 20_000)
    assert took < 120


@pytest.mark.slow
def test_ten_thousand_workers(tmp_path: Path) -> None:
    run, _ = simulate(mnist(10_000, 20_000), 10_000, tmp_path / "run")
    check(run, 10_000, 20_000)


def test_an_evaluation_of_peers_moves_as_many_replicas_as_there_are_workers(tmp_path: Path) -> None:
    # Every worker pulled the replica of every other: the square of their number.
    inputs, targets = torch.randn(96, 4), torch.zeros(96, dtype=torch.long)
    data = torch.utils.data.TensorDataset(inputs, targets)

    def received(workers: int, validation: torch.utils.data.TensorDataset | None) -> int:
        job = mh.Job(
            model=lambda: torch.nn.Linear(4, 2),
            optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
            loss=F.cross_entropy,
            data=data,
            validation=validation,
            metrics=(),
            global_batch=96,
            epochs=1,
        )
        folder = tmp_path / f"{workers}-{validation is not None}"
        run = mh.simulate(job, "gossip()", workers=workers, bandwidth="1gbit", output=folder)
        return sum(sum(each.totals.received.values()) for each in run.trace.processes)

    def evaluation(workers: int) -> int:
        return received(workers, data) - received(workers, None)

    few, many = evaluation(16), evaluation(48)
    assert 0 < many < 1.3 * 3 * few
