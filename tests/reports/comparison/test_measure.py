import doctest
from importlib import import_module

import pytest

from manyhands.reports import measure


def test_examples_in_docstrings() -> None:
    # The folder's name for it is the function's.
    assert doctest.testmod(import_module("manyhands.reports.comparison.measure")).failed == 0


def test_a_run_is_measured_from_its_trace_alone(finished) -> None:
    run = measure(finished.trace(), price=3600.0, target="accuracy >= 0.9")
    assert (run.strategy, run.workers, run.seed, run.kind) == ("allreduce()", 2, 0, "live")
    assert (run.status, run.words) == ("finished", "")
    assert (run.samples, run.seconds, run.start_up, run.rate) == (2000, 20.0, 2.0, 100.0)
    assert (run.first_epoch, run.later_epoch, run.evaluation) == (10.0, 10.0, None)
    assert run.validation["accuracy"].value == (0.9, 0.89)
    assert run.validation["accuracy"].seconds == (10.0, 20.0)
    assert run.validation["accuracy"].samples == (1000, 2000)
    assert (run.time_to_target, run.samples_to_target) == (10.0, 1000)
    assert run.loss.samples[-1] == 2000
    # Worker 0 computes 0.4 s and waits 0.4 s, worker 1 computes 0.8 s; 0.1 s each for the rest.
    assert run.shares == pytest.approx(
        {
            "compute": 0.6,
            "wait": 0.2,
            "communication": 0.1,
            "data": 0.1,
            "evaluation": 0.0,
            "other": 0.0,
        }
    )
    assert (run.sent, run.sent_per_sample) == (40_000_000, 20_000)
    assert run.staleness is None
    assert (run.seen, run.repeated, run.lost) == (2000, 0, 0)
    assert run.cost == 2 * 22.0


def test_what_is_given_wins_over_the_trace(finished) -> None:
    run = measure(finished.trace(), strategy="easgd()", workers=3, repeat=4, seed=5, folder="here")
    assert (run.strategy, run.workers, run.repeat, run.seed, run.folder) == (
        "easgd()",
        3,
        4,
        5,
        "here",
    )
    assert (run.cost, run.time_to_target) == (None, None)


def test_a_target_that_is_not_met_or_not_measured(finished) -> None:
    trace = finished.trace()
    assert measure(trace, target="accuracy >= 0.91").time_to_target is None
    assert measure(trace, target="f1 >= 0.1").time_to_target is None
    assert measure(trace, target="loss <= 0.06").time_to_target == 20.0
    with pytest.raises(ValueError, match="is not of the form"):
        measure(trace, target="accuracy above 0.9")


def test_a_run_that_did_not_finish_says_why(trained) -> None:
    agent = trained.processes["agent"][0].recorder
    agent.event("end", {"status": "failed", "words": "worker 1 was killed"})
    run = measure(trained.trace())
    assert (run.status, run.words) == ("failed", "failed: worker 1 was killed")
    assert run.samples == 2000


def test_staleness_with_its_distribution(stage) -> None:
    server = stage.process("server", 0).recorder
    for value in (1, 1, 2, 0):
        server.staleness(value, "worker-0")
    stage.process("worker", 0)
    found = measure(stage.trace()).staleness
    assert found is not None
    assert (found.mean, found.p99, found.most, found.updates) == (1.0, 2, 2, 4)
    assert found.histogram == {0: 1, 1: 2, 2: 1}


def test_bytes_that_nobody_counted_are_not_none_sent(stage) -> None:
    for rank in range(2):
        stage.process("worker", rank)
    assert measure(stage.trace()).sent is None


def test_one_worker_sends_nothing(stage) -> None:
    stage.process("worker", 0)
    assert measure(stage.trace()).sent == 0
