"""Workers that are slowed, in real runs: late by so much, and otherwise the same."""

import sys
from collections.abc import Callable

import pytest

from manyhands.reports import Run

SCRIPT = """
    import torch, torch.nn.functional as F
    import manyhands as mh

    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(1024, 256, generator=generator)
    job = mh.Job(
        model=lambda: torch.nn.Sequential(
            torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 5)
        ),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.01),
        loss=F.cross_entropy,
        data=torch.utils.data.TensorDataset(inputs, (inputs.sum(1) > 0).long()),
        validation=torch.utils.data.TensorDataset(inputs, (inputs.sum(1) > 0).long()),
        global_batch=128,
        epochs=8,
    )
    other = job

    if __name__ == "__main__":
        raise SystemExit("below the guard")
"""


@pytest.fixture
def train(train_script: Callable[..., Run]) -> Callable[..., Run]:
    """Train on two workers."""
    return lambda name, *options: train_script(name, "--workers", "2", *options)


def computed(run: Run) -> list[float]:
    """The seconds that each worker computed."""
    return [worker.totals.seconds["compute"] for worker in run.trace.workers]


@pytest.mark.timed
def test_a_slow_worker_computes_longer_and_the_others_wait_for_it(train) -> None:
    plain = train("plain", "--strategy", "allreduce")
    slowed = train("slowed", "--strategy", "allreduce", "--slow", "1:8x")
    fast, slow = computed(slowed)
    assert 4 < slow / fast < 16
    assert slow > 3 * max(computed(plain))
    first = slowed.trace.workers[0].totals.seconds
    assert first["exchange"] > 0.6 * (slow - fast), "the other one waits while it sleeps"
    assert slowed.parameters_digest == plain.parameters_digest, "only time is changed"
    assert "worker 1 computes 8 times as long" in slowed.summary()


@pytest.mark.timed
def test_a_slow_worker_of_a_free_running_strategy_does_less(train) -> None:
    run = train("free", "--strategy", "asynchronous", "--slow", "1:8x")
    first, second = (worker.totals.samples for worker in run.trace.workers)
    assert first + second == 8 * 1024
    assert first > 2 * second


@pytest.mark.timed
def test_time_and_target_are_limits_of_the_command_line(train) -> None:
    timed = train("timed", "--strategy", "allreduce", "--seconds", "2")
    assert timed.samples != 8 * 1024, "the script's epochs are not the limit"
    assert 1.5 < timed.seconds < 8
    aimed = train("aimed", "--strategy", "asynchronous", "--target", "accuracy >= 0.1")
    assert aimed.samples == 1024, "it was reached after the first epoch"


@pytest.mark.slow
def test_a_worker_that_is_not_there_is_not_slowed(start, train, tmp_path) -> None:
    for options, words in [
        (("--slow", "2:4x", "--workers", "2"), "the run has workers 0 to 1"),
        (("--slow", "fast"), "expected a worker and a factor, such as 2:4x"),
        (("--job", "jobs"), "has no job named 'jobs'"),
    ]:
        refused = start(sys.executable, "-m", "manyhands", "train", "script.py", *options)
        assert refused.finish() == 2, refused.text()
        assert words in refused.text()
        assert "Traceback" not in refused.text()
