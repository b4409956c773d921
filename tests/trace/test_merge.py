import io
import itertools
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.trace import Header, Recorder, Trace, merge, read
from manyhands.trace.merge import LONGEST_LINE


def written(
    role: str,
    rank: int,
    fill: Callable[[Recorder], object],
    *,
    boot: str = "one",
    clock: float = 100.0,
    wall: float = 1e9,
) -> bytes:
    """The bytes of a process that began and flushed at `clock`."""
    header = Header(role=role, rank=rank, host=boot, pid=rank, boot=boot, clock=clock, wall=wall)
    parts: list[bytes] = []
    recorder = Recorder(header, parts.append, lambda: clock)
    fill(recorder)
    recorder.flush()
    return b"".join(parts)


def nothing(_: Recorder) -> None:
    pass


def merged(**files: bytes) -> Trace:
    return merge((name.replace("_", "-"), io.BytesIO(data)) for name, data in files.items())


def test_a_clock_shifted_by_1234_and_a_half_seconds() -> None:
    shift = 1234.5
    trace = merged(
        coordinator=written("coordinator", 0, nothing),
        worker_0=written("worker", 0, lambda r: r.span("compute", 102.0, 1.0, 0)),
        worker_1=written(
            "worker",
            1,
            lambda r: (
                r.offset(-shift + 0.3, 0.5),
                r.offset(-shift, 0.001),
                r.span("compute", 102.0 + shift, 1.0, 0),
                r.point("loss", 1.0, samples=1),
                r.event("joined"),
            ),
            boot="two",
            clock=100.0 + shift,
        ),
    )
    assert [process.name for process in trace.processes] == ["coordinator", "worker-0", "worker-1"]
    here, there = trace.workers
    assert here.offset == here.offset_error == 0.0
    assert (there.offset, there.offset_error) == (-shift, 0.001)
    assert here.spans == there.spans
    assert there.spans[0].start == 2.0
    assert there.points[0].at == there.events[0].at == there.totals.at == there.began == 0.0
    assert trace.wall == 1e9


def test_equal_boots_have_no_offset_whatever_was_estimated() -> None:
    trace = merged(
        worker_0=written("worker", 0, nothing),
        worker_1=written("worker", 1, lambda r: r.offset(5.0, 0.1), clock=101.0),
    )
    assert [worker.offset for worker in trace.workers] == [0.0, 0.0]
    assert trace.workers[1].began == 1.0


def test_estimates_serve_all_processes_of_their_boot() -> None:
    trace = merged(
        worker_0=written("worker", 0, nothing),
        worker_1=written("worker", 1, lambda r: r.offset(-50.0, 0.1), boot="two", clock=150.0),
        worker_2=written("worker", 2, lambda r: r.offset(-50.5, 0.01), boot="two", clock=150.5),
        worker_3=written("worker", 3, nothing, boot="two", clock=151.5),
    )
    assert [worker.offset for worker in trace.workers] == [0.0, -50.5, -50.5, -50.5]
    assert trace.workers[3].began - trace.workers[0].began == 1.0


def test_without_an_estimate_the_wall_clocks_must_do() -> None:
    trace = merged(
        worker_0=written("worker", 0, nothing, clock=100.0, wall=1000.0),
        worker_1=written("worker", 1, nothing, boot="two", clock=7.0, wall=1002.0),
    )
    assert trace.workers[1].began == 2.0
    assert trace.workers[1].offset_error == math.inf


def test_the_run_starts_with_the_earliest_moment_anybody_recorded() -> None:
    trace = merged(
        worker_0=written("worker", 0, lambda r: r.span("start", 96.0, 4.0)),
        agent=written("agent", 0, nothing, clock=98.0),
    )
    assert trace.workers[0].spans[0].start == 0.0
    assert trace.processes[0].began == 2.0
    assert trace.wall == 1e9 - 4


@pytest.mark.parametrize(
    ("roles", "reference"),
    [
        (("agent", "worker", "coordinator"), "coordinator"),
        (("agent", "worker"), "worker"),
        (("agent",), "agent"),
    ],
)
def test_who_is_the_reference(roles: tuple[str, ...], reference: str) -> None:
    files = {role: written(role, 0, nothing, boot=role, wall=1e9) for role in roles}
    trace = merged(**files)
    exact = [p.header.role for p in trace.processes if p.offset_error == 0]
    assert exact == [reference]


processes = st.fixed_dictionaries(
    {
        "boot": st.sampled_from(["one", "two", "three"]),
        "clock": st.floats(0, 1e6),
        "spans": st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 10)), max_size=4),
        "offsets": st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0, 1)), max_size=3),
    }
)


@settings(deadline=None)
@given(st.lists(processes, min_size=1, max_size=4), st.randoms())
def test_the_order_of_the_files_does_not_matter(described: list[dict], random) -> None:
    files = []
    for rank, one in enumerate(described):

        def fill(recorder: Recorder, one=one) -> None:
            for step, (start, seconds) in enumerate(one["spans"]):
                recorder.span("compute", start, seconds, step)
            for seconds, error in one["offsets"]:
                recorder.offset(seconds, error)

        data = written("worker", rank, fill, boot=one["boot"], clock=one["clock"])
        files.append((f"worker-{rank}", data))
    shuffled = files.copy()
    random.shuffle(shuffled)
    results = [merge((name, io.BytesIO(data)) for name, data in each) for each in (files, shuffled)]
    assert results[0] == results[1]
    assert all(span.start >= 0 for worker in results[0].workers for span in worker.spans)


def test_a_file_torn_anywhere_is_read_up_to_there() -> None:
    data = written(
        "worker",
        0,
        lambda r: [r.span("compute", 100.0 + step, 1.0, step) for step in range(5)],
    )
    whole = merged(worker_0=data)
    header_ends = data.index(b"\n", 1) + 1
    for length in range(header_ends, len(data)):
        part = merged(worker_0=data[:length])
        (worker,) = part.workers
        assert worker.spans == whole.workers[0].spans[: len(worker.spans)]
        lines = data[:length].rstrip(b"\n").count(b"\n")
        assert len(worker.spans) + worker.skipped <= lines
        # A line that is complete but for its newline counts as complete.
        assert worker.skipped == int(data[length - 1 : length] not in (b"\n", b"]"))
    assert merged(worker_0=data).skipped == 0


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_no_garbage_stops_the_reading(garbage: bytes) -> None:
    data = written("worker", 0, lambda r: r.span("compute", 100.0, 1.0, 0))
    trace = merged(worker_0=data + garbage.replace(b'"header"', b"") + b"\n" + data)
    assert len(trace.workers) == 2
    assert all(len(worker.spans) == 1 for worker in trace.workers)


def test_unknown_records_are_skipped_and_counted() -> None:
    data = written("worker", 0, lambda r: r.span("compute", 100.0, 1.0, 0))
    strange = b'["hologram",1]\n["span","dreaming",1.0,1.0,0]\n{"a":1}\n' + b"[" * 5000 + b"\n"
    trace = merged(worker_0=data + strange + b"\xff\xfe\n\n\n")
    assert trace.workers[0].skipped == trace.skipped == 5


def test_a_line_over_a_mebibyte_is_skipped_and_what_follows_is_read() -> None:
    data = written("worker", 0, nothing)
    event = b'["event",100.0,"long",{"words":"%s"}]'
    fits = event % (b"x" * (LONGEST_LINE - len(event) + 2))
    assert len(fits) == LONGEST_LINE
    long = event % (b"x" * (3 * LONGEST_LINE))
    span = b'["span","compute",100.0,1.0,0]\n'
    trace = merged(worker_0=data + fits + b"\n" + long + b"\n" + span)
    (worker,) = trace.workers
    assert worker.skipped == 1
    assert len(worker.events) == len(worker.spans) == 1


def test_a_restarted_process_has_another_life_even_after_a_torn_line() -> None:
    first = written("worker", 0, lambda r: r.count(samples=10))
    second = written("worker", 0, lambda r: r.count(samples=5), clock=120.0)
    trace = merged(worker_0=first + b'["span","comp' + second)
    assert [(w.name, w.life, w.totals.samples) for w in trace.workers] == [
        ("worker-0", 0, 10),
        ("worker-0", 1, 5),
    ]
    assert trace.workers[0].skipped == 1


def test_the_last_cumulative_record_counts() -> None:
    def fill(recorder: Recorder) -> None:
        for _ in range(3):
            recorder.count(steps=1)
            recorder.staleness(2, "worker-1")
            recorder.samples(7, 1, 0)
            recorder.flush()

    (worker,) = merged(worker_0=written("worker", 0, fill)).workers
    assert worker.totals.steps == 3
    assert worker.staleness == {2: 3}
    assert worker.staleness_by_sender == {"worker-1": {2: 3}}
    assert worker.samples is not None
    assert worker.samples.seen == 7


def test_lines_before_any_header_belong_to_no_process() -> None:
    trace = merged(
        worker_0=written("worker", 0, nothing), worker_1=b'["span","compute",1.0,1.0,0]\nxyz\n'
    )
    assert len(trace.processes) == 1
    assert trace.unplaced == trace.skipped == 2


def test_a_later_format_is_refused_in_words() -> None:
    data = written("worker", 0, nothing).replace(b'["header",1', b'["header",2')
    with pytest.raises(ValueError, match=r"worker-0 has format 2, .* reads up to 1"):
        merged(worker_0=data)


def test_files_without_any_header_are_refused_in_words() -> None:
    with pytest.raises(ValueError, match="no file has a header"):
        merged(worker_0=b"")


def test_reading_a_folder(tmp_path: Path) -> None:
    (tmp_path / "trace").mkdir()
    for rank in range(2):
        path = tmp_path / "trace" / f"worker-{rank}.jsonl"
        path.write_bytes(written("worker", rank, nothing))
    trace = read(str(tmp_path))
    assert [worker.name for worker in trace.workers] == ["worker-0", "worker-1"]
    assert trace.folder == tmp_path


def test_a_folder_without_traces_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="holds no run"):
        read(tmp_path)


def test_workers_are_ordered_by_number_and_not_by_letter() -> None:
    names = [f"worker_{rank}" for rank in (10, 2, 0)]
    files = {name: written("worker", int(name[7:]), nothing) for name in names}
    for order in itertools.permutations(files):
        trace = merged(**{name: files[name] for name in order})
        assert [worker.header.rank for worker in trace.workers] == [0, 2, 10]
