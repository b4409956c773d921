"""One definition of speed: of two runs over the same samples, less time is never slower."""

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.reports import epochs, measure, throughput, training_interval
from manyhands.reports.comparison.results import Comparison
from manyhands.reports.comparison.standings import fields
from manyhands.reports.comparison.verdict import judge
from manyhands.reports.figures.speed import evaluations
from manyhands.trace import Trace


def lockstep(
    stage, *, start: float, first: float, later: float, evaluation: float, epochs: int = 3
) -> Trace:
    """Two workers in lockstep; the first one writes down epochs and evaluates as all do."""
    for rank in range(2):
        worker = stage.process("worker", rank)
        recorder, clock = worker.recorder, worker.clock
        recorder.span("start", 0.0, start)
        clock.now = start
        for number in range(epochs):
            seconds = later if number else first
            recorder.span("compute", clock.now, seconds, number)
            recorder.count(samples=50, steps=1)
            clock.now += seconds
            if rank == 0:
                _end_epoch(recorder, number)
            recorder.span("evaluate", clock.now, evaluation, number)
            clock.now += evaluation
        recorder.event("trained")
        recorder.samples(50 * epochs)
    return stage.trace()


def with_server(
    stage, *, start: float, first: float, later: float, evaluation: float, epochs: int = 3
) -> Trace:
    """Two workers that pull, and compute one after the other; the coordinator keeps account."""
    desk = stage.process("coordinator")
    for rank in range(2):
        worker = stage.process("worker", rank)
        recorder, clock = worker.recorder, worker.clock
        recorder.span("start", 0.0, start - 1.0)
        recorder.span("receive", start - 1.0, 1.0, 0)
        clock.now = start
        for number in range(epochs):
            seconds = later if number else first
            recorder.span("wait", clock.now, rank * seconds / 2, number)
            recorder.span("compute", clock.now + rank * seconds / 2, seconds / 2, number)
            recorder.count(samples=50, steps=1)
            clock.now += seconds
            if rank == 0:
                desk.clock.now = clock.now
                _end_epoch(desk.recorder, number)
            recorder.span("evaluate", clock.now, evaluation, number)
            clock.now += evaluation
        recorder.event("trained")
    desk.recorder.samples(100 * epochs)
    return stage.trace()


def _end_epoch(recorder, number: int) -> None:
    recorder.event("epoch", {"number": str(number), "samples": str(100 * (number + 1))})


FAMILIES = (lockstep, with_server)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_times_give_the_same_figures_in_every_family(make_stage, family) -> None:
    speed = throughput(family(make_stage(), start=2.0, first=6.0, later=4.0, evaluation=8.0))
    assert (speed.samples, speed.seconds, speed.start_up) == (300, 38.0, 2.0)
    assert speed.rate == pytest.approx(300 / 38)
    assert (speed.first_epoch, speed.later_epoch, speed.evaluation) == (6.0, 4.0, 8.0)


runs = st.tuples(
    st.sampled_from(FAMILIES),
    st.fixed_dictionaries(
        {
            "start": st.floats(1.0, 60.0),
            "first": st.floats(0.1, 60.0),
            "later": st.floats(0.1, 60.0),
            "evaluation": st.floats(0.01, 60.0),
        }
    ),
)


@settings(deadline=None)
@given(st.lists(runs, min_size=2, max_size=4))
def test_whatever_took_less_time_is_never_called_slower(make_stage: Callable, planned) -> None:
    traces, walls = [], {}
    for number, (family, times) in enumerate(planned):
        traces.append(family(make_stage(), **times))
        walls[f"s{number}()"] = times["first"] + 2 * times["later"] + 3 * times["evaluation"]
    measured = [
        measure(trace, strategy=name, workers=2, repeat=repeat, folder="")
        for trace, name in zip(traces, walls, strict=True)
        for repeat in range(2)
    ]
    # They have no agent that says so.
    finished = [type(run)(**{**_fields(run), "status": "finished"}) for run in measured]
    (field,) = fields(Comparison(strategies=tuple(walls), workers=(2,), runs=tuple(finished)))
    contest = judge(field).contests["speed"]
    assert walls[contest.best.strategy] == pytest.approx(min(walls.values()))
    for (one, less), (other, more) in itertools.permutations(walls.items(), 2):
        if less < more / 1.06:
            assert one not in contest.behind or other in contest.behind


def _fields(run) -> dict:
    return {name: getattr(run, name) for name in run.__struct_fields__}


def test_training_begins_with_the_first_batch_whatever_was_pulled_before(stage) -> None:
    worker = stage.process("worker", 0)
    worker.recorder.span("start", 1.0, 1.0)
    worker.recorder.span("receive", 2.0, 1.0, 0)
    worker.recorder.span("data", 4.0, 1.0, 0)
    worker.recorder.span("start", 5.0, 3.0)
    worker.clock.now = 6.0
    worker.recorder.event("trained")
    worker.clock.now = 9.0
    assert training_interval(stage.trace().workers[0]) == (4.0, 6.0)


def test_a_worker_without_any_batch_began_when_it_had_started(stage) -> None:
    worker = stage.process("worker", 0)
    worker.recorder.span("start", 1.0, 1.0)
    worker.recorder.span("start", 2.0, 1.0)
    worker.recorder.span("wait", 4.0, 1.0, 0)
    worker.recorder.span("start", 5.0, 3.0)
    worker.clock.now = 9.0
    assert training_interval(stage.trace().workers[0]) == (3.0, 9.0)


def test_one_epoch_is_not_set_apart(stage) -> None:
    worker = stage.process("worker", 0)
    worker.clock.now = 4.0
    worker.recorder.event("epoch", {"number": "0", "samples": "100"})
    trace = stage.trace()
    assert throughput(trace).first_epoch is None
    assert [epoch.rate for epoch in epochs(trace)] == [25.0]


def test_epochs_are_timed_by_when_they_ended_and_unreadable_ones_are_left_out(stage) -> None:
    worker = stage.process("worker", 0)
    for at, detail in [
        (10.0, {"number": "0", "samples": "100", "seconds": "3.0"}),
        (20.0, {"number": "1", "samples": "200", "seconds": "?"}),
        (30.0, {"number": "two", "samples": "300"}),
        (40.0, {}),
    ]:
        worker.clock.now = at
        worker.recorder.event("epoch", detail)
    done = epochs(stage.trace())
    assert [(epoch.samples, epoch.seconds) for epoch in done] == [(100, 10.0), (100, 10.0)]


def test_epochs_are_taken_from_one_process_and_repeated_ones_count_once(stage) -> None:
    for rank, count in ((0, 2), (0, 3), (1, 3)):
        worker = stage.process("worker", rank)
        for number in range(count - 2, count):
            worker.clock.now += 10.0
            detail = {"number": str(number), "samples": str(100 * (number + 1))}
            worker.recorder.event("epoch", detail)
    assert [epoch.number for epoch in epochs(stage.trace())] == [0, 1, 2]


def test_an_evaluation_lasts_from_the_first_worker_to_the_last(stage) -> None:
    for rank in range(2):
        worker = stage.process("worker", rank)
        for at in (10.0, 30.0):
            worker.recorder.span("evaluate", at + rank, 4.0, 0)
        worker.clock.now = 40.0
    assert evaluations(stage.trace()) == ((10.0, 15.0), (30.0, 35.0))
