"""The drawn timeline."""

import re
import xml.etree.ElementTree as ET

import pytest

from manyhands.reports import Run, timeline
from manyhands.reports.render.timeline import MOST_SPANS, MOST_WORKERS

SVG = "{http://www.w3.org/2000/svg}"


def parse(text: str) -> ET.Element:
    return ET.fromstring(text)  # noqa: S314 - we wrote it


def words(text: str) -> list[str]:
    return [element.text or "" for element in parse(text).iter(f"{SVG}text")]


def bars(text: str) -> dict[tuple[str, str], list[tuple[float, float]]]:
    """By the row's name and the band, where each bar begins and how wide it is, in pixels."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    row = ""
    for element in parse(text):
        if element.tag == f"{SVG}text":
            row = element.text or ""
        elif element.tag == f"{SVG}g":
            band = element.attrib["class"].split()[-1]
            found[row, band] = [
                (float(one.attrib["x"]), float(one.attrib["width"])) for one in element
            ]
    return found


def seconds(text: str) -> dict[tuple[str, str], float]:
    """By the row's name and the band, the time of all bars, measured by the axis."""
    ticks = {}
    for element in parse(text).iter(f"{SVG}text"):
        match = re.fullmatch(r"([\d.]+) (ms|s)", element.text or "")
        if match:
            ticks[float(element.attrib["x"])] = float(match[1]) * (1e-3 if match[2] == "ms" else 1)
    (x0, t0), *_, (x1, t1) = sorted(ticks.items())
    scale = (t1 - t0) / (x1 - x0)
    return {key: sum(width for _, width in each) * scale for key, each in bars(text).items()}


def test_widths_add_up_to_the_spans(stage) -> None:
    recorder = stage.process("worker", 0).recorder
    recorder.span("start", 0.0, 3.0)
    for step in range(5):
        recorder.span("data", 3.0 + step, 0.1, step)
        recorder.span("compute", 3.1 + step, 0.5, step)
        recorder.span("send", 3.6 + step, 0.05, step)
        recorder.span("wait", 3.7 + step, 0.3, step)
    found = seconds(timeline(stage.trace()))
    assert found == {
        ("worker-0", "data"): pytest.approx(0.5, rel=1e-3),
        ("worker-0", "compute"): pytest.approx(2.5, rel=1e-3),
        ("worker-0", "communication"): pytest.approx(0.25, rel=1e-3),
        ("worker-0", "wait"): pytest.approx(1.5, rel=1e-3),
    }


def test_what_an_answer_takes_beyond_the_shortest_is_a_wait(stage) -> None:
    for rank, computes in enumerate((0.4, 1.0)):
        recorder = stage.process("worker", rank).recorder
        # The first pull follows no computation and says nothing of how long a push takes.
        recorder.span("receive", 0.0, 0.1, 0)
        recorder.span("compute", 0.1, computes, 0)
        # Posted while computing, and heard from two servers in turn: that is one meeting.
        recorder.span("send", computes, 0.001, 0)
        recorder.span("receive", 0.1 + computes, 1.1 - computes, 0)
        recorder.span("receive", 1.2001, 0.0999, 0)
    found = seconds(timeline(stage.trace()))
    assert found["worker-0", "wait"] == pytest.approx(0.6, rel=1e-2)
    assert found["worker-0", "communication"] == pytest.approx(0.3, rel=1e-2)
    assert ("worker-1", "wait") not in found
    assert found["worker-1", "communication"] == pytest.approx(0.3, rel=1e-2)


def test_collectives_are_told_apart_step_by_step(finished) -> None:
    # The exchange takes 0.1 s in each of 20 steps; worker 0 waits for the slower worker 1.
    found = seconds(timeline(finished.trace()))
    for rank, waits in enumerate((8.0, 0.0)):
        assert found[f"worker-{rank}", "communication"] == pytest.approx(2.0, rel=1e-2)
        assert found.get((f"worker-{rank}", "wait"), 0.0) == pytest.approx(waits, rel=1e-2)


def test_the_strategy_the_legend_and_the_units(finished) -> None:
    found = words(timeline(finished.trace()))
    assert found[0] == "allreduce() on 2 workers"
    assert {"compute", "wait", "communication", "data"} <= set(found)
    assert "20 s" in found
    assert "evaluation" not in found


def test_names_are_escaped(stage) -> None:
    worker = stage.process("worker", 0)
    worker.recorder.setting("strategy", "<&>", "script")
    assert words(timeline(stage.trace()))[0] == "<&> on 1 worker"


def test_an_empty_trace_says_so(stage) -> None:
    stage.process("worker", 0)
    text = timeline(stage.trace())
    assert "nothing was recorded" in words(text)
    assert "worker-0" in words(text)
    assert not bars(text)


def test_nobody_but_a_coordinator(stage) -> None:
    stage.process("coordinator")
    assert "nothing was recorded" in words(timeline(stage.trace()))


def test_of_many_workers_the_first_are_shown_with_a_note(stage) -> None:
    for rank in range(MOST_WORKERS + 3):
        stage.process("worker", rank).recorder.span("compute", 0.0, 1.0, 0)
    text = timeline(stage.trace())
    assert sum(word.startswith("worker-") for word in words(text)) == MOST_WORKERS
    assert "3 more workers not shown" in words(text)


def test_a_long_run_is_cut_with_a_note_and_stays_small(stage) -> None:
    for rank in range(MOST_WORKERS):
        recorder = stage.process("worker", rank).recorder
        for step in range(1000):
            recorder.span("compute", step * 1.0, 0.97, step)
    text = timeline(stage.trace())
    assert len(text.encode()) < 60_000
    assert sum(map(len, bars(text).values())) == MOST_SPANS
    assert "the first 50 s of 1,000 s" in words(text)


def test_a_server_has_a_row_if_it_did_anything(stage) -> None:
    stage.process("worker", 0).recorder.span("compute", 0.0, 1.0, 0)
    stage.process("server", 0).recorder.span("compute", 1.0, 0.5, 0)
    stage.process("server", 1)
    found = words(timeline(stage.trace()))
    assert "server-0" in found
    assert "server-1" not in found


def test_the_lives_of_a_worker_share_a_row(stage) -> None:
    stage.process("worker", 0).recorder.span("compute", 0.0, 1.0, 0)
    stage.process("worker", 0).recorder.span("compute", 2.0, 1.0, 0)
    text = timeline(stage.trace())
    assert words(text).count("worker-0") == 1
    assert len(bars(text)["worker-0", "compute"]) == 2


def test_a_run_draws_itself(finished, tmp_path) -> None:
    (tmp_path / "trace").mkdir()
    for name, data in finished.files().items():
        (tmp_path / "trace" / f"{name}.jsonl").write_bytes(data)
    run = Run(tmp_path)
    path = run.timeline(tmp_path / "timeline.svg")
    assert path.read_text("utf-8") == timeline(run.trace)
