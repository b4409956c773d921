"""The example of a sweep: one command, one curve, on real data."""

import shlex
import sys
from pathlib import Path

import pytest

from manyhands.reports import read_results
from manyhands.reports.comparison.sweeps import sweeps
from support import ROOT

EXAMPLE = ROOT / "examples" / "sweep.py"


@pytest.mark.slow
def test_the_command_of_the_example_draws_a_curve(start, tmp_path: Path) -> None:
    text = EXAMPLE.read_text("utf-8").split("\n\n")[1]
    verb, script, *options = shlex.split(text.removeprefix("    manyhands"))
    assert script == "examples/sweep.py"
    command = (sys.executable, "-m", "manyhands", verb, EXAMPLE, *options, "--repeats", "1")
    started = start(*command)
    assert started.finish(170) == 0, started.text()
    (sweep,) = sweeps(read_results(tmp_path / "softsync"))
    (curve,) = sweep.curves
    assert [point.value for point in curve.points] == list(range(1, 9))
    staleness = next(column for column in sweep.columns if column.name == "staleness_mean")
    figures = [point.standing.middle(staleness).value for point in curve.points]
    assert figures == sorted(figures, reverse=True)
    assert figures[-1] == 0
    assert "Sweep over wait_for" in (tmp_path / "softsync" / "report.html").read_text("utf-8")
