"""`python -m benchmarks.first_step` with one round, so that it keeps working."""

import json
import os
import sys

import pytest

from support import ROOT


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_side_makes_its_first_step(start):
    paths = os.pathsep.join((str(ROOT), str(ROOT / "src")))
    command = (sys.executable, "-m", "benchmarks.first_step", "--rounds", "1")
    started = start(*command, PYTHONPATH=paths)
    assert started.finish(280) == 0, started.text()
    figures = json.loads(started.text().splitlines()[-1])["figures"]
    sides = ("manyhands train", "python train.py", "torchrun")
    assert all(figures["import torch"][0] < figures[side][0] for side in sides)
    assert not started.tree(), "no process is left"
