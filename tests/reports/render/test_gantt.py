"""Schedules as pictures: what is in the table is drawn, where the replay has it."""

import xml.etree.ElementTree as ET

import pytest

from manyhands.reports.render.gantt import gantt
from manyhands.schedules import Durations, interleaved, replay, zero_bubble

SVG = "{http://www.w3.org/2000/svg}"


def boxes(text):
    root = ET.fromstring(text)  # noqa: S314 - written by ourselves
    return [box for box in root.iter(f"{SVG}rect") if box.get("class") == "box"]


def test_every_action_is_a_box_as_long_as_it_takes():
    table = zero_bubble(stages=3, microbatches=6, ranks=3)
    done = replay(table, Durations.even(3, 1.0, 2.0, 3.0))
    drawn = boxes(gantt("a title", table, done))
    # The first stage gives nobody an input gradient: what takes no time is not drawn.
    shown = [timed for rank in done.ranks for timed in rank if timed.stop > timed.start]
    assert len(drawn) == len(shown) == 3 * 6 * 3 - 6
    scale = float(drawn[0].get("width")) / (shown[0].stop - shown[0].start)
    for box, timed in zip(drawn, shown, strict=True):
        width = scale * (timed.stop - timed.start)
        assert float(box.get("width")) == pytest.approx(width, abs=0.5)


def test_later_stages_of_a_worker_are_paler_and_the_end_can_be_cut():
    table = interleaved(stages=4, microbatches=4, ranks=2)
    done = replay(table, Durations.even(4, 1.0, 1.0, 1.0))
    whole, half = (gantt("a title", table, done, end) for end in (None, done.makespan / 2))
    assert gantt("a title", table, done) == whole
    assert {box.get("fill-opacity") for box in boxes(whole)} == {None, "0.65"}
    assert 0 < len(boxes(half)) < len(boxes(whole))


def test_a_title_is_escaped():
    table = zero_bubble(stages=1, microbatches=1, ranks=1)
    text = gantt("p < m & more", table, replay(table, Durations.even(1, 1.0, 1.0, 1.0)))
    assert ET.fromstring(text).find(f"{SVG}title").text == "p < m & more"  # noqa: S314
