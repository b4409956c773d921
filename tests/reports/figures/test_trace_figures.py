import doctest

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.reports import (
    PhaseBytes,
    accounting,
    loss_curve,
    measure,
    staleness,
    staleness_by_process,
    staleness_by_sender,
    summary,
    time_to,
    traffic,
    validation,
)
from manyhands.reports.comparison.columns import columns
from manyhands.reports.figures import trace_figures as figures
from manyhands.trace import Flow


def test_examples_in_docstrings() -> None:
    assert doctest.testmod(figures).failed == 0


def test_samples_are_those_accounted_for(stage) -> None:
    for rank in range(2):
        worker = stage.process("worker", rank)
        worker.recorder.count(samples=10)
    assert accounting(stage.trace()).seen == 20
    assert accounting(stage.trace()).lost is None
    stage.process("coordinator").recorder.samples(18, repeated=2, lost=1)
    kept = accounting(stage.trace())
    assert (kept.seen, kept.repeated, kept.lost) == (18, 2, 1)


def test_bytes_by_all_processes(finished) -> None:
    result = traffic(finished.trace())
    assert result.sent == 40_000_000
    assert result.sent_per_sample == 20_000
    assert result.measured


def columns_of(run) -> dict[str, float | None]:
    found = columns([], None, "", "", "")
    return {column.name: column.of(run, None) for column in found if column.section == "traffic"}


def test_bytes_by_phase_and_scope_are_summed_over_processes(stage) -> None:
    for rank in range(2):
        flows = {
            "training/between": Flow(100, 110, 50, 55),
            "training/within": Flow(1, 2, 3, 4),
            "start/within": Flow(0, 0, 7, 8),
        }
        sent = {"server-0": 112}
        stage.process("worker", rank).recorder.count(samples=5, sent=sent, traffic=flows)
    server = stage.process("server", 0)
    server.recorder.count(sent={"worker-0": 3}, traffic={"training/between": Flow(2, 3, 0, 0)})
    result = traffic(stage.trace())
    assert result.flow("training", "between") == Flow(202, 223, 100, 110)
    assert result.flow("training") == Flow(204, 227, 106, 118)
    assert result.flow("evaluation") == Flow()
    run = measure(stage.trace())
    assert (run.sent, run.sent_per_sample) == (227, 22.7)
    assert run.traffic["training"] == PhaseBytes(
        payload_between=202,
        wire_between=223,
        payload_within=2,
        wire_within=4,
        workers_sent=202,
        workers_received=106,
    )
    assert run.traffic["start"] == PhaseBytes(workers_received=14)
    assert columns_of(run) == {
        "sent_per_sample": 22.7,
        "payload_per_sample": 20.4,
        "between_per_sample": 22.3,
    }
    words = " ".join(summary(stage.trace()).split())
    assert "sent 227 B, 23 B per sample; 204 B of payload in training, 223 B between hosts" in words


def test_a_run_on_one_host_has_no_column_of_zeros(stage) -> None:
    flows = {"training/within": Flow(100, 110, 0, 0)}
    stage.process("worker", 0).recorder.count(samples=5, sent={"server-0": 110}, traffic=flows)
    run = measure(stage.trace())
    assert columns_of(run)["payload_per_sample"] == 20
    assert columns_of(run)["between_per_sample"] is None
    assert "100 B of payload in training, all within the host" in " ".join(
        summary(stage.trace()).split()
    )


def test_bytes_that_nobody_counted(stage) -> None:
    stage.process("worker", 0)
    result = traffic(stage.trace())
    assert (result.sent, result.sent_per_sample, result.measured) == (0, 0.0, False)


def test_staleness_as_a_distribution(stage) -> None:
    assert staleness(stage_with(stage, {0: {}})) is None
    trace = stage_with(stage, {1: {0: 98, 1: 1}, 2: {50: 1}})
    spread = staleness(trace)
    assert spread is not None
    assert (spread.updates, spread.p99, spread.most) == (100, 1, 50)
    assert spread.mean == pytest.approx(0.51)
    by = staleness_by_process(trace)
    assert list(by) == ["worker-1", "worker-2"]
    assert by["worker-2"].mean == 50


def test_staleness_by_sender_whichever_server_applied_the_update(stage) -> None:
    for number in range(2):
        server = stage.process("server", number).recorder
        server.staleness(1 + number, "worker-1")
        server.staleness(7, "worker-0")
    by = staleness_by_sender(stage.trace())
    assert {name: (spread.updates, spread.mean) for name, spread in by.items()} == {
        "worker-0": (2, 7.0),
        "worker-1": (2, 1.5),
    }


def stage_with(stage, histograms):
    for rank, histogram in histograms.items():
        worker = stage.process("worker", rank)
        for value, count in histogram.items():
            for _ in range(count):
                worker.recorder.staleness(value)
    return stage.trace()


@settings(deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=300))
def test_p99_is_the_least_that_99_percent_do_not_exceed(values: list[int]) -> None:
    histogram = {value: values.count(value) for value in set(values)}
    spread = figures._spread([histogram])
    assert spread is not None
    within = sum(value <= spread.p99 for value in values)
    below = sum(value < spread.p99 for value in values)
    assert within * 100 >= 99 * len(values) > below * 100
    assert spread.mean == pytest.approx(sum(values) / len(values))


def test_the_loss_is_weighted_by_samples_over_all_workers(stage) -> None:
    for rank, (loss, weight) in enumerate([(1.0, 30), (3.0, 10)]):
        worker = stage.process("worker", rank)
        for step in range(4):
            worker.clock.now = step + 1 + 0.1 * rank
            value = loss / (step + 1)
            worker.recorder.point("loss", value, samples=weight * (step + 1), weight=weight)
    curve = loss_curve(stage.trace())
    assert [point.value for point in curve] == pytest.approx([1.5, 0.75, 0.5, 0.375])
    assert [point.samples for point in curve] == [40, 80, 120, 160]
    assert [point.seconds for point in curve] == pytest.approx([1.1, 2.1, 3.1, 4.1])
    halves = loss_curve(stage.trace(), points=2)
    assert [point.value for point in halves] == pytest.approx([1.125, 0.4375])
    with pytest.raises(ValueError, match="points is 0"):
        loss_curve(stage.trace(), points=0)


@settings(deadline=None)
@given(count=st.integers(0, 400), points=st.integers(1, 50))
def test_the_loss_curve_has_no_more_points_than_asked_for(
    make_stage, count: int, points: int
) -> None:
    stage = make_stage()
    for rank in range(3):
        worker = stage.process("worker", rank)
        for number in range(count // (rank + 1)):
            worker.clock.now = number * (rank + 1)
            worker.recorder.point("loss", 1.0, samples=number, weight=1)
    curve = loss_curve(stage.trace(), points)
    assert len(curve) <= points
    assert all(point.value == pytest.approx(1.0) for point in curve)


def test_a_loss_that_was_not_finite_is_not_averaged_away(stage) -> None:
    worker = stage.process("worker", 0)
    worker.recorder.point("loss", 1.0, samples=1)
    worker.recorder.point("loss", float("nan"), samples=2)
    assert [point.value for point in loss_curve(stage.trace())] == [1.0, None]


def test_validation_last_and_best(finished) -> None:
    metrics = validation(finished.trace())
    assert list(metrics) == ["accuracy", "loss"]
    accuracy = metrics["accuracy"]
    assert (accuracy.last, accuracy.best, accuracy.best_seconds) == (0.89, 0.9, 10.0)
    assert metrics["loss"].best == metrics["loss"].last == 1 / 19


def test_validation_that_was_never_finite(stage) -> None:
    stage.process("worker", 0).recorder.point("validation/loss", float("inf"), samples=1)
    (metric,) = validation(stage.trace()).values()
    assert (metric.last, metric.best, metric.best_seconds) == (None, None, None)


def test_time_to_a_target(finished) -> None:
    trace = finished.trace()
    assert time_to(trace, "accuracy", 0.9) == 10.0
    assert time_to(trace, "accuracy", 0.91) is None
    assert time_to(trace, "loss", 0.06) == 20.0
    with pytest.raises(KeyError, match="there is: accuracy, loss"):
        time_to(trace, "f1", 0.5)
