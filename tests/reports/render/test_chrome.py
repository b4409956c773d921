import json
from typing import Any

import pytest

from manyhands.reports import chrome

REQUIRED = {
    "X": {"name", "ph", "ts", "dur", "pid", "tid"},
    "C": {"name", "ph", "ts", "pid", "args"},
    "i": {"name", "ph", "ts", "pid", "tid", "s"},
    "M": {"name", "ph", "pid", "args"},
}


def events(trace) -> list[dict[str, Any]]:
    def refuse(word: str) -> None:
        pytest.fail(f"{word} is no JSON")

    document = json.loads(chrome(trace), parse_constant=refuse)
    assert set(document) <= {"traceEvents", "displayTimeUnit"}
    assert document["displayTimeUnit"] in {"ms", "ns"}
    return document["traceEvents"]


def test_the_rules_of_the_format(finished) -> None:
    found = events(finished.trace())
    assert {event["ph"] for event in found} == set(REQUIRED)
    for event in found:
        assert REQUIRED[event["ph"]] <= set(event)
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert event["ts"] >= 0
        assert event.get("dur", 0) >= 0
        assert event.get("s", "p") in {"g", "p", "t"}
        if event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())
    times = [event["ts"] for event in found]
    assert times == sorted(times)


def test_every_process_has_a_name(finished) -> None:
    found = events(finished.trace())
    names = {e["pid"]: e["args"]["name"] for e in found if e["name"] == "process_name"}
    assert names == {1: "agent on hostA", 2: "worker-0 on hostA", 3: "worker-1 on hostA"}
    assert {event["pid"] for event in found} == set(names)


def test_spans_in_microseconds_messages_in_a_lane_of_their_own(stage) -> None:
    recorder = stage.process("worker", 0).recorder
    recorder.span("compute", 1.5, 0.25, 7)
    recorder.span("send", 1.6, 0.1, 7)
    spans = [event for event in events(stage.trace()) if event["ph"] == "X"]
    assert [(s["name"], s["ts"], s["dur"], s["tid"], s["args"]) for s in spans] == [
        ("compute", 1_500_000.0, 250_000.0, 0, {"step": 7}),
        ("send", 1_600_000.0, 100_000.0, 1, {"step": 7}),
    ]


def test_slices_of_one_lane_nest_or_follow_each_other(finished) -> None:
    lanes: dict[tuple[int, int], float] = {}
    for event in events(finished.trace()):
        if event["ph"] == "X":
            lane = (event["pid"], event["tid"])
            assert event["ts"] >= lanes.get(lane, 0.0) - 1e-2
            lanes[lane] = event["ts"] + event["dur"]


def test_a_value_that_is_not_finite_is_left_out(stage) -> None:
    recorder = stage.process("worker", 0).recorder
    recorder.point("loss", float("nan"), samples=1)
    recorder.point("loss", 0.5, samples=2)
    counters = [event for event in events(stage.trace()) if event["ph"] == "C"]
    assert [counter["args"] for counter in counters] == [{"value": 0.5}]


def test_the_same_trace_gives_the_same_bytes(finished) -> None:
    trace = finished.trace()
    assert chrome(trace) == chrome(trace)


def test_a_restarted_process_is_shown_apart(stage) -> None:
    stage.process("worker", 0)
    stage.process("worker", 0)
    names = [e["args"]["name"] for e in events(stage.trace()) if e["name"] == "process_name"]
    assert names == ["worker-0 on hostA", "worker-0 on hostA, life 2"]
