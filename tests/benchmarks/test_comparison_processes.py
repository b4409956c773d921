"""`python -m benchmarks.comparison_processes` with few samples, so that it keeps working."""

import json
import os
import sys

import pytest

from support import ROOT


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_one_process_and_two_leave_the_same(start):
    paths = os.pathsep.join((str(ROOT), str(ROOT / "src")))
    options = ("--samples", "128", "--blocks", "1")
    command = (sys.executable, "-m", "benchmarks.comparison_processes", *options)
    started = start(*command, PYTHONPATH=paths)
    assert started.finish(580) == 0, started.text()
    assert "the results are equal to the bit" in started.text()
    figures = json.loads(started.text().splitlines()[-1])["figures"]
    assert figures["equal"] is True
    assert set(figures["seconds"]) == {"1", "2"}
    middle, least, most = figures["ratio"]
    assert 0 < least <= middle <= most
    assert not started.tree(), "no process is left"
