import dataclasses
import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.reports import Shares, breakdown
from manyhands.reports.figures.breakdown import CodingSeconds, coding_seconds
from manyhands.trace import KINDS, Header, ProcessTrace, Span, Totals, Trace


def shares(of: Shares) -> dict[str, float]:
    values = dataclasses.asdict(of)
    del values["seconds"]
    return values


def test_a_planted_straggler(make_stage: Callable) -> None:
    """Worker w computes c·(1 + w/10), the exchange takes x after the last has arrived."""
    workers, steps, compute, exchange = 4, 50, 1.0, 0.25
    stage = make_stage()
    slowest = compute * (1 + (workers - 1) / 10)
    for rank in range(workers):
        worker = stage.process("worker", rank)
        own = compute * (1 + rank / 10)
        for step in range(steps):
            begun = step * (slowest + exchange)
            worker.recorder.span("compute", begun, own, step)
            worker.recorder.span("exchange", begun + own, slowest - own + exchange, step)
        worker.clock.now = steps * (slowest + exchange)
    result = breakdown(stage.trace())
    wall = slowest + exchange
    for rank in range(workers):
        own = compute * (1 + rank / 10)
        of_worker = result.workers[f"worker-{rank}"]
        assert of_worker.seconds == pytest.approx(steps * wall)
        assert shares(of_worker) == pytest.approx(
            {
                "compute": own / wall,
                "wait": (slowest - own) / wall,
                "communication": exchange / wall,
                "coding": 0.0,
                "data": 0.0,
                "evaluation": 0.0,
                "other": 0.0,
            },
            abs=1e-9,
        )
    mean = compute * (1 + (workers - 1) / 20)
    assert result.overall.compute == pytest.approx(mean / wall)
    assert result.overall.wait == pytest.approx((slowest - mean) / wall)
    assert result.overall.communication == pytest.approx(exchange / wall)


def test_encoding_and_decoding_are_a_part_of_their_own(make_stage: Callable) -> None:
    stage = make_stage()
    worker, server = stage.process("worker"), stage.process("server")
    for step in range(10):
        worker.recorder.span("compute", 4.0 * step, 2.0, step)
        worker.recorder.span("encode", 4.0 * step + 2.0, 1.0, step)
        worker.recorder.span("receive", 4.0 * step + 3.0, 1.0, step)
        server.recorder.span("encode", 4.0 * step + 3.0, 0.5, step)
    worker.clock.now = 40.0
    found = breakdown(stage.trace()).overall
    assert (found.compute, found.coding, found.communication) == pytest.approx((0.5, 0.25, 0.25))
    assert coding_seconds(stage.trace()) == CodingSeconds(workers=10.0, servers=5.0)


def test_without_codecs_nothing_is_coded(make_stage: Callable) -> None:
    stage = make_stage()
    stage.process("worker").recorder.span("compute", 0.0, 1.0, 0)
    assert coding_seconds(stage.trace()) is None


def test_a_straggler_who_changes_from_step_to_step(make_stage: Callable) -> None:
    stage = make_stage()
    for rank in range(2):
        worker = stage.process("worker", rank)
        for step in range(10):
            late = step % 2 == rank
            worker.recorder.span("compute", 4.0 * step, 3.0 if late else 1.0, step)
            worker.recorder.span("exchange", 4.0 * step, 1.0 if late else 3.0, step)
        worker.clock.now = 40.0
    for of_worker in breakdown(stage.trace()).workers.values():
        assert of_worker.wait == pytest.approx(0.25)
        assert of_worker.communication == pytest.approx(0.25)


def test_thinned_steps_stand_for_those_left_out(make_stage: Callable) -> None:
    """Waiting begins when most steps are no longer recorded, and still gets its due share."""
    stage = make_stage()
    steps, turn = 20_000, 2_000
    for rank in range(2):
        worker = stage.process("worker", rank, full=100)
        for step in range(steps):
            exposed = 3.0 if rank == 0 and step >= turn else 1.0
            worker.recorder.span("exchange", 0.0, exposed, step)
        worker.clock.now = 3.0 * steps
    waited = 2.0 * (steps - turn)
    result = breakdown(stage.trace()).workers["worker-0"]
    assert result.wait * result.seconds == pytest.approx(waited, rel=0.02)


def test_a_fully_overlapped_exchange_means_nobody_had_to_communicate(stage) -> None:
    for rank in range(2):
        worker = stage.process("worker", rank)
        for step in range(4):
            worker.recorder.span("compute", step, 0.5, step)
            if rank == 0 or step == 0:
                worker.recorder.span("exchange", step + 0.5, 0.5, step)
        worker.clock.now = 4.0
    first = breakdown(stage.trace()).workers["worker-0"]
    assert first.communication == pytest.approx(0.5 / 4)
    assert first.wait == pytest.approx(1.5 / 4)


def test_workers_without_a_common_step_are_compared_two_by_two(stage) -> None:
    for rank, steps in enumerate([range(10), range(5), range(5, 10)]):
        worker = stage.process("worker", rank)
        for step in steps:
            worker.recorder.span("exchange", step, 1.0 if rank == 0 else 0.5, step)
        worker.clock.now = 10.0
    result = breakdown(stage.trace()).workers
    assert result["worker-0"].wait == pytest.approx(0.5)
    assert result["worker-1"].wait == 0.0


def test_lives_of_one_worker_are_one_worker(stage) -> None:
    for _ in range(2):
        life = stage.process("worker", 0)
        life.recorder.span("compute", 0.0, 1.0, 0)
        life.clock.now = 2.0
    result = breakdown(stage.trace())
    assert list(result.workers) == ["worker-0"]
    assert result.overall.seconds == 4.0
    assert result.overall.compute == 0.5


def test_kinds_and_their_categories(stage) -> None:
    worker = stage.process("worker", 0)
    worker.recorder.span("start", 0.0, 5.0)
    for number, kind in enumerate(("compute", "wait", "send", "receive", "encode", "data")):
        worker.recorder.span(kind, 5.0 + number, 1.0, 0)
    worker.recorder.span("evaluate", 11.0, 2.0, 0)
    worker.clock.now = 15.0
    result = breakdown(stage.trace()).overall
    assert result.seconds == 10.0
    assert shares(result) == pytest.approx(
        {
            "compute": 0.1,
            "wait": 0.1,
            "communication": 0.2,
            "coding": 0.1,
            "data": 0.1,
            "evaluation": 0.2,
            "other": 0.2,
        }
    )


def test_the_first_pull_of_the_parameters_is_start_up(stage) -> None:
    worker = stage.process("worker", 0)
    worker.recorder.span("start", 0.0, 1.0)
    worker.recorder.span("receive", 1.0, 3.0, 0)
    worker.recorder.span("compute", 4.0, 1.0, 0)
    worker.recorder.span("receive", 5.0, 3.0, 0)
    worker.clock.now = 8.0
    result = breakdown(stage.trace()).overall
    assert result.seconds == 4.0
    assert (result.compute, result.communication) == (0.25, 0.75)


def test_a_run_in_which_nothing_happened(stage) -> None:
    stage.process("worker", 0)
    result = breakdown(stage.trace())
    assert result.overall.other == 1.0
    assert result.overall.seconds == 0.0


lives = st.builds(
    lambda rank, spans, totals, at: ProcessTrace(
        name=f"worker-{rank}",
        life=0,
        header=Header(role="worker", rank=rank, host="a", pid=1, boot="b", clock=0.0, wall=0.0),
        began=0.0,
        offset=0.0,
        offset_error=0.0,
        spans=tuple(spans),
        totals=Totals(at, 0, 0, totals, {}, {}),
        points=(),
        events=(),
        settings=(),
        staleness={},
        samples=None,
        skipped=0,
    ),
    rank=st.integers(0, 3),
    spans=st.lists(
        st.builds(
            Span,
            st.sampled_from(KINDS),
            st.floats(0, 1e6),
            st.floats(0, 1e4),
            st.integers(0, 6),
        ),
        max_size=12,
    ),
    totals=st.dictionaries(st.sampled_from([*KINDS, "unheard of"]), st.floats(0, 1e6)),
    at=st.floats(0, 1e6),
)


@settings(deadline=None)
@given(st.lists(lives, max_size=6))
def test_shares_are_never_negative_and_sum_to_one(processes: list[ProcessTrace]) -> None:
    result = breakdown(Trace(processes=tuple(processes), wall=0.0, kind="live"))
    for each in (result.overall, *result.workers.values()):
        values = shares(each).values()
        assert all(0.0 <= value <= 1.0 + 1e-12 for value in values)
        assert math.isclose(sum(values), 1.0, abs_tol=1e-9)
