"""Times, faults, bandwidths and latencies as text."""

import math
import random
import statistics

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from manyhands.notation import NotationError
from manyhands.protocols import Averaging
from manyhands.sampling.permutation import mix
from manyhands.trace import Header, Recorder, trace_file
from manyhands.units import bandwidth, seconds
from manyhands.virtual import TIMES, Crash, Cut, Faults, Pause, times
from manyhands.virtual.conditions.compute_times import (
    Constant,
    Exponential,
    Gamma,
    LogNormal,
    MeasuredTimes,
    Normal,
    Slow,
)


def a_source(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311 - nothing secret is drawn


moments = st.floats(0, 1e6)
spans = st.floats(1e-6, 1e6)
numbers = st.integers(0, 9999)
crashes = st.one_of(
    st.builds(Crash, worker=numbers, at=moments, restart=st.none() | moments),
    st.builds(Crash, server=numbers, at=moments, restart=moments),
)
pauses = st.one_of(
    st.builds(Pause, worker=numbers, at=moments, seconds=spans),
    st.builds(Pause, server=numbers, at=moments, seconds=spans),
)


@st.composite
def cuts(draw: st.DrawFn) -> Cut:
    names = [f"worker-{draw(numbers)}", f"server-{draw(numbers)}"]
    start, length = draw(moments), draw(spans)
    assume(start + length > start)
    return Cut(*draw(st.permutations(names)), start, start + length)


schedules = st.lists(crashes | pauses | cuts(), max_size=12).map(
    lambda all_of: Faults(tuple(all_of))
)


@given(schedules)
def test_a_schedule_reads_back_from_its_text(faults: Faults) -> None:
    assert Faults.read(str(faults)) == faults
    assert str(Faults.read(str(faults))) == str(faults)


@given(seed=st.integers(0, 2**63), workers=st.integers(1, 50), servers=st.integers(1, 5))
def test_a_drawn_schedule_fits_its_run_and_reads_back(
    seed: int, workers: int, servers: int
) -> None:
    faults = Faults.draw(seed, workers, servers, horizon=10.0)
    assert faults == Faults.draw(seed, workers, servers, horizon=10.0)
    assert Faults.read(str(faults)) == faults
    assert 1 <= len(faults.faults) <= 8
    faults.check(workers, servers)
    for fault in faults.faults:
        if isinstance(fault, Crash) and (fault.worker == 0 or fault.server is not None):
            assert fault.restart is not None, "or the run might never end"


def test_drawn_schedules_differ_and_have_everything_in_them() -> None:
    drawn = [Faults.draw(seed, 4, 2, 5.0) for seed in range(200)]
    assert len({str(faults) for faults in drawn}) == 200
    assert {type(fault) for faults in drawn for fault in faults.faults} == {Crash, Pause, Cut}


def test_the_text_of_a_schedule() -> None:
    cut = 'cut(a="worker-0", b="server-1", start=4.0, stop=6.0)'
    text = f"[crash(worker=3, at=2.5, restart=1.0), {cut}]"
    faults = Faults.read(text)
    assert str(faults) == text
    assert faults.faults == (
        Crash(worker=3, at=2.5, restart=1.0),
        Cut("worker-0", "server-1", 4, 6),
    )
    assert Faults.read("pause(worker=1, at=2)") == Faults((Pause(worker=1, at=2.0),))
    assert Faults.read(" [] ") == Faults()
    assert Faults.read(faults) is faults


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("crash()", "either a worker or a server"),
        ("crash(worker=1, server=1)", "either a worker or a server"),
        ("crash(worker=-1)", "no such process: worker--1"),
        ("crash(server=0, at=1)", "cannot continue without a server: set restart"),
        ("crash(worker=0, at=-1)", "at must be 0 or more"),
        ("pause(worker=0, seconds=0)", "seconds must be above 0"),
        (
            'cut(a="server-0", b="server-1", start=0, stop=1)',
            "expected a worker and a server, or two",
        ),
        (
            'cut(a="worker-1", b="worker-1", start=0, stop=1)',
            "expected a worker and a server, or two",
        ),
        ('cut(a="worker-0", b="host", start=0, stop=1)', "called worker-0 or server-0, not 'host'"),
        ('cut(a="worker-0", b="server-0", start=2, stop=1)', "stop must be after start"),
        ("explode(worker=0)", "no fault 'explode'"),
        ("[crash(worker=0)", "expected"),
    ],
)
def test_what_is_no_schedule_is_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(NotationError, match=words):
        Faults.read(text)


means = st.floats(1e-6, 1e3)
variations = st.floats(0.01, 3)
slows = st.lists(st.builds(Slow, st.integers(0, 99), st.floats(0.1, 100)), max_size=3).map(tuple)
distributions = st.one_of(
    st.builds(Constant, means, slow=slows),
    st.builds(Normal, means, variations, slow=slows),
    st.builds(LogNormal, means, variations, slow=slows),
    st.builds(Exponential, means, slow=slows),
    st.builds(Gamma, means, variations, slow=slows),
    st.builds(MeasuredTimes, st.text(max_size=20), slow=slows),
)


@given(distributions)
def test_times_read_back_from_their_text(one) -> None:
    again = times(str(one))
    assert again == one
    assert type(again) is type(one)


@given(distributions, st.integers(0, 2**63), st.integers(0, 99))
def test_times_are_positive_and_finite(one, seed: int, rank: int) -> None:
    assume(not isinstance(one, MeasuredTimes))
    draw = one.of(rank, a_source(seed))
    assert all(0 < draw() < math.inf for _ in range(20))


@pytest.mark.parametrize(
    ("text", "cv"),
    [
        ("constant(0.2)", 0),
        ("normal(0.2, cv=0.2)", 0.2),
        ("lognormal(0.2, cv=0.5)", 0.5),
        ("exponential(0.2)", 1),
        ("gamma(0.2, cv=0.4)", 0.4),
    ],
)
def test_times_have_the_mean_and_the_variation_they_say(text: str, cv: float) -> None:
    draw = times(text).of(3, a_source(5))
    drawn = [draw() for _ in range(40_000)]
    assert statistics.fmean(drawn) == pytest.approx(0.2, rel=0.02)
    assert statistics.pstdev(drawn) / 0.2 == pytest.approx(cv, abs=0.02)


def test_slow_workers_take_their_factors() -> None:
    one = times("constant(0.5, slow=[slow(rank=2, factor=4), slow(2, 2.0), slow(1, 0.5)])")
    assert [one.of(rank, a_source(0))() for rank in range(4)] == [0.5, 0.25, 4.0, 0.5]


def test_a_worker_s_draws_do_not_depend_on_the_others() -> None:
    one = times("lognormal(0.1, cv=0.3)")

    def draws(ranks: list[int]) -> dict[int, list[float]]:
        drawers = {rank: one.of(rank, a_source(mix(7, 3, rank))) for rank in ranks}
        return {rank: [draw() for _ in range(5)] for rank, draw in drawers.items()}

    assert draws([0, 1, 2])[2] == draws([2])[2]
    assert draws([0])[0] != draws([1])[1]


def test_measured_times_are_those_of_a_run(tmp_path) -> None:
    for rank, pace in ((0, 0.1), (1, 0.4)):
        header = Header(role="worker", rank=rank, host="h", pid=1, boot="b", clock=0.0, wall=0.0)
        path = trace_file(tmp_path, header)
        path.parent.mkdir(exist_ok=True)
        with path.open("ab") as file:
            recorder = Recorder(header, file.write, lambda: 9.0)
            recorder.span("compute", 0.0, 99.0, 0)
            for step in range(1, 6):
                recorder.span("data", step, pace / 10, step)
                recorder.span("compute", step, pace, step)
                recorder.span("exchange", step, 5.0, step)
                recorder.span("compute", step + 0.5, pace / 2, step)
            recorder.flush()
    one = MeasuredTimes(str(tmp_path))
    for rank, expected in ((0, 0.16), (1, 0.64), (2, 0.16), (3, 0.64)):
        draw = one.of(rank, a_source(0))
        assert {round(draw(), 6) for _ in range(20)} == {expected}


def test_a_batch_is_measured_by_itself_even_if_several_are_committed_together(
    virtually, tmp_path
) -> None:
    run = virtually(protocol=Averaging(every=5), seconds="constant(0.1)").run
    draw = MeasuredTimes(str(run.folder)).of(0, a_source(0))
    assert {round(draw(), 6) for _ in range(20)} == {0.1}
    (worker, *_) = run.trace.workers
    assert [s.step for s in worker.spans if s.kind == "compute"] == list(range(worker.totals.steps))


def test_measuring_a_run_that_computed_nothing_is_refused(tmp_path) -> None:
    header = Header(role="worker", host="h", pid=1, boot="b", clock=0.0, wall=0.0)
    path = trace_file(tmp_path, header)
    path.parent.mkdir()
    with path.open("ab") as file:
        Recorder(header, file.write, lambda: 9.0).flush()
    with pytest.raises(ValueError, match="no recorded compute times"):
        MeasuredTimes(str(tmp_path)).of(0, a_source(0))


def test_every_kind_of_times_is_explained() -> None:
    for name in TIMES.names():
        description = TIMES.describe(name)
        assert description.summary.endswith(".")
        assert all(field.text for field in description.fields)
        assert str(times(description.example))


@pytest.mark.parametrize(
    "text", ["normal(0.1)", "constant(0)", "lognormal(0.1, cv=-1)", "uniform(1)"]
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(NotationError):
        times(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("100mbit", 12.5e6),
        ("10Gbit", 1.25e9),
        ("8 kbit/s", 1e3),
        ("1.5GB/s", 1.5e9),
        ("1e6b", 1e6),
        (5, 5.0),
    ],
)
def test_bandwidths(text: str | float, expected: float) -> None:
    assert bandwidth(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0.5ms", 5e-4), ("20us", 2e-5), ("2s", 2), ("3", 3), (0.25, 0.25), (0, 0)],
)
def test_latencies(text: str | float, expected: float) -> None:
    assert seconds(text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["fast", "", "-1mbit", "0mbit", "mbit", "1 parsec", "inf", "nan"])
def test_what_is_no_bandwidth_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="bandwidth"):
        bandwidth(text)


@pytest.mark.parametrize("text", ["soon", "", "-1ms", "1mbit", "nan"])
def test_what_is_no_latency_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="time"):
        seconds(text)
