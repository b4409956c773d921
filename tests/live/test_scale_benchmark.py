"""`python -m benchmarks.scale` with a few workers, so that it keeps working."""

import json
import os
import sys

import pytest

from support import ROOT


@pytest.mark.timeout(150)
def test_light_workers(start):
    options = ("--workers", "2", "5", "--servers", "2", "--seconds", "2", "--drivers", "2")
    paths = os.pathsep.join((str(ROOT), str(ROOT / "src")))
    started = start(sys.executable, "-m", "benchmarks.scale", *options, PYTHONPATH=paths)
    assert started.finish(140) == 0, started.text()
    figures = json.loads(started.text().splitlines()[-1])["figures"]
    for workers, load in zip((2, 5), figures["loads"], strict=True):
        assert load["workers"] == workers
        assert load["leases"] > workers, "all have begun, and go on"
        assert load["beats"] >= workers
        assert load["server_per_push"] > 0
    assert figures["message_ratio"] > 0
    assert not started.tree(), "no process is left"
