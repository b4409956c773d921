"""Evaluations by samples, seconds and epochs on a virtual clock."""

from typing import Any

import pytest
from virtual_jobs import a_job

import manyhands as mh
from manyhands.reports import Run, measure

LOCKSTEP = ("synchronous()", "ssp(staleness=0)", "softsync(wait_for=3)")
FREE = ("asynchronous()", "gossip()", "averaging(every=3)", "hogwild()", "easgd(every=2)")


def run(folder: Any, strategy: str, **changes: Any) -> Run:
    return mh.simulate(a_job(**changes), strategy, workers=3, output=folder)


def points(done: Run) -> tuple[int, ...]:
    return measure(done.trace).validation["loss"].samples


def job_with(**changes: Any) -> dict[str, Any]:
    return {"validation": a_job().data} | changes


@pytest.mark.parametrize("strategy", [*LOCKSTEP, *FREE])
def test_an_evaluation_every_so_many_samples_and_after_every_epoch(tmp_path, strategy: str) -> None:
    done = run(tmp_path / "a", strategy, **job_with(evaluate_every=mh.every(samples=70)))
    # Batches of 20 samples, epochs of 200: the batch that completes 70, 140, 210, ... samples.
    expected = (80, 140, 200, 220, 280, 360, 400)
    if strategy == "averaging(every=3)":
        # An evaluation waits for the end of a round: of 60 samples, or with an epoch.
        expected = (120, 180, 200, 260, 320, 380, 400)
    assert points(done) == expected
    assert done.samples == 400


@pytest.mark.parametrize(
    ("epochs", "expected"), [(0.5, (100, 200, 300, 400)), (2, (400,)), (1.5, (300, 400))]
)
def test_an_interval_in_epochs_takes_the_place_of_every_epoch(tmp_path, epochs, expected) -> None:
    done = run(tmp_path / "a", "asynchronous()", **job_with(evaluate_every=mh.every(epochs=epochs)))
    assert points(done) == expected


def test_an_evaluation_every_so_many_seconds(tmp_path) -> None:
    done = run(tmp_path / "a", "asynchronous()", **job_with(evaluate_every=mh.every(seconds=0.3)))
    curve = measure(done.trace).validation["loss"]
    gaps = [after - before for before, after in zip(curve.seconds, curve.seconds[1:], strict=False)]
    assert len(curve.value) > 4
    # Leases that were begun are completed first, which takes about as long as a batch.
    assert all(gap < 1.0 for gap in gaps)
    assert {200, 400} <= set(curve.samples), "the ends of the epochs too"


@pytest.mark.parametrize("strategy", LOCKSTEP)
def test_evaluating_more_often_does_not_change_what_lockstep_strategies_learn(
    tmp_path, strategy: str
) -> None:
    rarely = run(tmp_path / "a", strategy, **job_with())
    often = run(tmp_path / "b", strategy, **job_with(evaluate_every=mh.every(samples=20)))
    timed = run(tmp_path / "c", strategy, **job_with(evaluate_every=mh.every(seconds=0.3)))
    assert len(points(often)) == 20
    assert len(points(timed)) > 4
    assert rarely.metrics == often.metrics == timed.metrics


def test_a_target_is_checked_at_every_evaluation(tmp_path) -> None:
    often = {"evaluate_every": mh.every(samples=20), "target": "loss <= 1.5"}
    done = run(tmp_path / "a", "asynchronous()", **job_with(**often))
    assert done.samples < 200
    assert done.samples == points(done)[-1]


def test_what_cannot_be_evaluated_is_refused() -> None:
    with pytest.raises(ValueError, match="needs validation data"):
        a_job(evaluate_every=mh.every(samples=20))
    with pytest.raises(TypeError, match="must be an interval"):
        a_job(validation=a_job().data, evaluate_every=20)
