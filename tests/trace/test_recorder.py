import math
import threading
import time
import timeit

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.trace import (
    KINDS,
    Event,
    Flow,
    Header,
    Offset,
    Point,
    Record,
    Recorder,
    SampleCount,
    SenderStaleness,
    Setting,
    Span,
    Staleness,
    Totals,
    TrafficCount,
)
from manyhands.trace.recorder import OTHERS, PEERS, SENDERS, keeps

HEADER = Header(role="worker", rank=0, host="a", pid=1, boot="b", clock=100.0, wall=1e9)


class Clock:
    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def recorder(full_steps: int = 2000) -> tuple[Recorder, list[bytes], Clock]:
    written: list[bytes] = []
    clock = Clock()
    return Recorder(HEADER, written.append, clock, full_steps), written, clock


def records(written: list[bytes]) -> list[Record]:
    decoder = msgspec.json.Decoder(Record)
    return [decoder.decode(line) for line in b"".join(written).splitlines() if line]


def last(written: list[bytes], kind: type) -> Record:
    return [record for record in records(written) if isinstance(record, kind)][-1]


def test_everything_recorded_is_written_in_order() -> None:
    rec, written, clock = recorder()
    rec.setting("workers", 2, "command line")
    rec.span("compute", 100.5, 0.25, 0)
    clock.now = 101.0
    rec.point("loss", 2.5, samples=32, weight=32)
    rec.event("checkpoint", {"path": "x"})
    rec.offset(1.5, 0.01)
    rec.samples(32, repeated=1, lost=2)
    rec.staleness(3)
    rec.count(samples=32, steps=1, sent={"worker-1": 10}, received={"worker-1": 20})
    rec.flush()
    assert records(written) == [
        HEADER,
        Setting("workers", "2", "command line"),
        Span("compute", 100.5, 0.25, 0),
        Point(101.0, "loss", 2.5, 32, 32.0),
        Event(101.0, "checkpoint", {"path": "x"}),
        Offset(101.0, 1.5, 0.01),
        Staleness(101.0, {3: 1}),
        SampleCount(101.0, 32, 1, 2),
        Totals(101.0, 1, 32, {"compute": 0.25}, {"worker-1": 10}, {"worker-1": 20}),
    ]


def told(written: list[bytes]) -> list[SenderStaleness]:
    return [record for record in records(written) if isinstance(record, SenderStaleness)]


def test_staleness_is_told_apart_by_sender() -> None:
    rec, written, _ = recorder()
    for versions, sender in ((3, "worker-1"), (0, "worker-0"), (3, "worker-1"), (5, "")):
        rec.staleness(versions, sender)
    rec.flush()
    assert last(written, Staleness) == Staleness(100.0, {3: 2, 0: 1, 5: 1})
    assert told(written) == [
        SenderStaleness(100.0, "worker-1", {3: 2}),
        SenderStaleness(100.0, "worker-0", {0: 1}),
    ]
    rec.flush()
    assert len(told(written)) == 2, "nothing new"


def test_a_sender_is_told_as_often_as_the_logarithm_of_its_updates() -> None:
    rec, written, clock = recorder()
    for _ in range(10_000):
        clock.now += 2 * max(1.0, 0.01 * (clock.now - 100.0))
        rec.staleness(1, "worker-0")
        rec.drain()
    assert 30 <= len(told(written)) <= 45
    rec.flush()
    assert told(written)[-1].counts == {1: 10_000}


def test_of_very_many_senders_the_first_are_told_apart() -> None:
    rec, written, _ = recorder()
    for number in range(2 * SENDERS):
        rec.staleness(1, f"worker-{number}")
    rec.staleness(2, "worker-0")
    rec.flush()
    assert len(told(written)) == SENDERS
    assert told(written)[0].counts == {1: 1, 2: 1}
    assert last(written, Staleness).counts == {1: 2 * SENDERS, 2: 1}


def test_the_sink_gets_whole_lines_and_first_of_all_an_empty_one() -> None:
    rec, written, _ = recorder()
    rec.flush()
    rec.span("data", 100.0, 1.0, 0)
    rec.flush()
    assert written[0].startswith(b"\n")
    assert not written[1].startswith(b"\n")
    assert all(lines.endswith(b"\n") for lines in written)


def test_nothing_is_written_before_the_first_flush() -> None:
    rec, written, _ = recorder()
    rec.span("data", 100.0, 1.0, 0)
    assert written == []


def test_an_unknown_kind_is_refused_where_it_is_said() -> None:
    rec, _, _ = recorder()
    with pytest.raises(ValueError, match=r"'computing'.*must be one of compute"):
        rec.span("computing", 0.0, 1.0, 0)
    with pytest.raises(ValueError, match="and the step at least 0"):
        rec.span("compute", 0.0, 1.0, -1)
    with pytest.raises(ValueError, match="full_steps must be at least 1, got 0"):
        Recorder(HEADER, print, Clock(), full_steps=0)


def test_counts_add_and_traffic_replaces() -> None:
    rec, written, _ = recorder()
    for _ in range(2):
        rec.count(sent={"server-0": 5})
        rec.traffic(sent={"worker-1": 7, "worker-2": 1}, received={"worker-1": 9})
    rec.traffic(sent={"worker-1": 6}, received={})
    rec.flush()
    totals = last(written, Totals)
    assert isinstance(totals, Totals)
    assert totals.sent == {"server-0": 10, "worker-1": 6, "worker-2": 1}
    assert totals.received == {"worker-1": 9}


def test_flows_of_one_kind_add_up_and_are_handed_over_once() -> None:
    rec, written, _ = recorder()
    count = TrafficCount()
    for phase, scope in (("training", "between"), ("training", "within"), ("start", "within")):
        count.sent("server-0", phase, scope, payload=100, envelope=7)
        count.received("server-0", phase, scope, payload=1000, envelope=9)
    count.sent("server-1", "training", "between", envelope=5)
    count.hand_to(rec)
    count.hand_to(rec)
    count.received("server-0", "training", "between", payload=1)
    count.hand_to(rec)
    rec.flush()
    totals = last(written, Totals)
    assert isinstance(totals, Totals)
    assert totals.sent == {"server-0": 321, "server-1": 5}
    assert totals.received == {"server-0": 3028}
    assert totals.traffic == {
        "training/between": Flow(100, 112, 1001, 1010),
        "training/within": Flow(100, 107, 1000, 1009),
        "start/within": Flow(100, 107, 1000, 1009),
    }
    # What a kernel counted replaces what it counted before.
    rec.traffic(sent={}, received={}, traffic={"start/within": Flow(1, 2, 3, 4)})
    rec.flush()
    totals = last(written, Totals)
    assert isinstance(totals, Totals)
    assert totals.traffic["start/within"] == Flow(1, 2, 3, 4)
    assert totals.traffic["training/within"] == Flow(100, 107, 1000, 1009)


def test_a_trace_of_an_earlier_version_has_no_flows() -> None:
    line = b'["totals",101.0,1,32,{"compute":0.25},{"worker-1":10},{"worker-1":20}]'
    assert msgspec.json.decode(line, type=Record).traffic == {}


def test_a_loss_that_is_not_finite_is_written_as_none() -> None:
    rec, written, _ = recorder()
    for value in (math.nan, math.inf):
        rec.point("loss", value, samples=1)
    rec.flush()
    assert [r.value for r in records(written) if isinstance(r, Point)] == [None, None]


def test_only_offsets_that_improve_are_written() -> None:
    rec, written, _ = recorder()
    for error in (0.5, 0.7, 0.1, 0.1):
        rec.offset(1.0, error)
    rec.flush()
    assert [r.error for r in records(written) if isinstance(r, Offset)] == [0.5, 0.1]


@settings(deadline=None)
@given(full=st.integers(1, 50), number=st.integers(0, 10**9))
def test_the_first_are_kept_and_then_ever_fewer(full: int, number: int) -> None:
    stride = 1
    while number >= full * (2 * stride - 1):
        stride *= 2
    assert keeps(number, full) == (number % stride == 0)


@settings(deadline=None)
@given(full=st.integers(1, 50), count=st.integers(1, 5000))
def test_what_is_kept_grows_with_the_logarithm(full: int, count: int) -> None:
    kept = sum(keeps(number, full) for number in range(count))
    assert kept <= (full + 1) * (math.log2(count / full + 1) + 1)


@settings(max_examples=20, deadline=None)
@given(
    spans=st.lists(
        st.tuples(st.sampled_from(KINDS), st.floats(0, 10), st.integers(0, 500)), max_size=200
    ),
    every=st.integers(1, 50),
)
def test_totals_are_exact_whatever_the_sampling(
    spans: list[tuple[str, float, int]], every: int
) -> None:
    rec, written, _ = recorder(full_steps=3)
    expected: dict[str, float] = {}
    for number, (kind, seconds, step) in enumerate(spans):
        rec.span(kind, 100.0, seconds, step)
        rec.count(steps=1, samples=step)
        expected[kind] = expected.get(kind, 0.0) + seconds
        if number % every == 0:
            rec.flush()
    rec.flush()
    totals = last(written, Totals)
    assert isinstance(totals, Totals)
    assert totals.seconds == expected
    assert totals.steps == len(spans)
    assert totals.samples == sum(step for _, _, step in spans)


def test_two_workers_keep_the_same_steps_however_they_flush() -> None:
    kept = []
    for every in (1, 77):
        rec, written, _ = recorder(full_steps=10)
        for step in range(300):
            rec.span("exchange", 100.0 + step, 0.5, step)
            if step % every == 0:
                rec.drain()
        rec.flush()
        kept.append([r.step for r in records(written) if isinstance(r, Span)])
    assert kept[0] == kept[1]
    assert len(kept[0]) < 60


def test_evaluations_are_kept_though_they_fall_between_the_sampled_steps() -> None:
    rec, written, _ = recorder(full_steps=10)
    for step in (101, 1001, 10001):
        rec.span("evaluate", 100.0 + step, 0.5, step)
    rec.flush()
    assert [r.step for r in records(written) if isinstance(r, Span)] == [101, 1001, 10001]


def test_the_latest_point_of_a_name_is_never_lost() -> None:
    rec, written, clock = recorder(full_steps=2)
    for number in range(100):
        clock.now += 0.001
        rec.point("validation/accuracy", number, samples=number)
    rec.flush()
    rec.flush()
    values = [r.value for r in records(written) if isinstance(r, Point)]
    assert values[:3] == [0, 1, 2]
    assert values[-1] == 99
    assert len(values) == len(set(values)) < 20


def test_a_million_steps_stay_below_five_mebibytes() -> None:
    size = 0

    def sink(lines: bytes) -> None:
        nonlocal size
        size += len(lines)

    clock = Clock()
    rec = Recorder(HEADER, sink, clock)
    for step in range(1_000_000):
        clock.now += 0.0123456789
        rec.span("compute", clock.now, 0.0111111111, step)
        rec.span("exchange", clock.now, 0.0011111111, step)
        if step % 100 == 99:
            rec.point("loss", 1 / (step + 1), samples=step, weight=3200.0)
            rec.traffic(sent={"worker-1": step}, received={"worker-1": step})
            rec.drain()
    rec.flush()
    assert size < 5 << 20


def test_drain_writes_sums_ever_more_rarely_and_flush_always() -> None:
    rec, written, clock = recorder()
    rec.drain()
    assert isinstance(records(written)[-1], Totals)
    for _ in range(20_000):
        clock.now += 0.5
        rec.count(steps=1)
        rec.drain()
    sums = [record for record in records(written) if isinstance(record, Totals)]
    assert len(sums) < 1 + 100 + math.log(100) / math.log(1.009)
    # A process that is killed has lost at most a hundredth.
    assert sums[-1].at - 100 >= 0.99 * (clock.now - 100) - 0.5
    rec.flush()
    totals = last(written, Totals)
    assert isinstance(totals, Totals)
    assert totals.steps == 20_000


def test_a_sink_that_fails_loses_spans_but_no_sums() -> None:
    written: list[bytes] = []

    def sink(lines: bytes) -> None:
        if not written:
            written.append(b"")
            raise OSError("disk full")
        written.append(lines)

    rec = Recorder(HEADER, sink, Clock())
    rec.count(steps=1)
    with pytest.raises(OSError, match="disk full"):
        rec.flush()
    rec.count(steps=1)
    rec.flush()
    totals = last(written, Totals)
    assert isinstance(totals, Totals)
    assert totals.steps == 2


def test_flushing_on_another_thread_loses_nothing() -> None:
    written: list[bytes] = []
    rec = Recorder(HEADER, written.append, Clock(), full_steps=100_000)
    done = threading.Event()

    def flush_until_done() -> None:
        while not done.is_set():
            rec.flush()

    flusher = threading.Thread(target=flush_until_done)
    flusher.start()
    try:
        for step in range(50_000):
            rec.span("compute", 100.0, 1.0, step)
            rec.count(steps=1)
    finally:
        done.set()
        flusher.join()
    rec.flush()
    totals = last(written, Totals)
    assert isinstance(totals, Totals)
    assert totals.steps == 50_000
    assert totals.seconds == {"compute": 50_000.0}
    assert [r.step for r in records(written) if isinstance(r, Span)] == list(range(50_000))


def test_a_span_costs_two_microseconds_at_most() -> None:
    rec = Recorder(HEADER, len, time.monotonic)
    calls = 10_000
    best = min(timeit.repeat(lambda: rec.span("compute", 1.0, 0.1, 17), number=calls, repeat=10))
    assert best / calls <= 2e-6


def test_bytes_are_told_apart_for_the_peers_with_most_and_their_sum_is_exact() -> None:
    # Under collectives each of N workers has N − 1 peers, and says so every time it says its sums.
    def totals(peers: int) -> tuple[Totals, int]:
        rec, written, _ = recorder()
        sent = {f"worker-{rank}": 1000 + rank for rank in range(peers)}
        rec.traffic(sent=sent, received={name: 2 * count for name, count in sent.items()})
        rec.flush()
        said = last(written, Totals)
        assert isinstance(said, Totals)
        assert sum(said.sent.values()) == sum(sent.values())
        assert sum(said.received.values()) == 2 * sum(sent.values())
        return said, len(b"".join(written))

    few, _ = totals(PEERS)
    assert OTHERS not in few.sent
    many, length = totals(1000)
    assert len(many.sent) == len(many.received) == PEERS
    assert many.sent["worker-999"] == 1999, "the largest are told apart"
    assert length < 64 * PEERS


def test_a_successor_continues_a_trace_without_a_second_header():
    lines: list[bytes] = []
    clock = Clock()
    first = Recorder(HEADER, lines.append, clock)
    first.event("one")
    first.samples(10)
    first.drain()
    second = Recorder(HEADER, lines.append, clock, continues=True)
    second.event("one")
    second.samples(10)
    second.discard()
    second.event("two")
    second.flush()
    records = [
        msgspec.json.decode(line, type=Record)
        for line in b"".join(lines).splitlines()
        if line.strip()
    ]
    assert sum(isinstance(record, Header) for record in records) == 1
    assert [record.what for record in records if isinstance(record, Event)] == ["one", "two"]
    assert [record.seen for record in records if isinstance(record, SampleCount)] == [10, 10]
