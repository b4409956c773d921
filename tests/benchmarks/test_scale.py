"""`python -m benchmarks.scale` with a few workers, so that it keeps working."""

import json
import os
import sys

import pytest

from support import ROOT


@pytest.mark.timeout(150)
@pytest.mark.slow
def test_light_workers(start):
    options = ("--workers", "5", "--servers", "2", "--seconds", "2", "--drivers", "2")
    paths = os.pathsep.join((str(ROOT), str(ROOT / "src")))
    started = start(sys.executable, "-m", "benchmarks.scale", *options, PYTHONPATH=paths)
    assert started.finish(140) == 0, started.text()
    figures = json.loads(started.text().splitlines()[-1])["figures"]
    (load,) = figures["loads"]
    assert load["workers"] == 5
    assert load["leases"] > 5, "all have begun, and go on"
    assert load["beats"] >= 5
    assert load["server_per_push"] > 0
    assert figures["message_ratio"] == 1.0
    assert not started.tree(), "no process is left"
