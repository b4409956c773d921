"""The README's one command, on real data."""

import sys

import pytest

from manyhands.reports import Run
from support import ROOT


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_lenet_on_mnist_reaches_97_5_percent_in_one_epoch_on_two_workers(start, tmp_path):
    command = (sys.executable, "-m", "manyhands", "train", ROOT / "examples" / "mnist.py")
    started = start(*command, "--workers", "2", "--output", "run")
    assert started.finish(280) == 0, started.text()
    run = Run(tmp_path / "run")
    assert run.samples == 60_000
    assert run.metrics["accuracy"] >= 0.975
    assert run.metrics["f1"] >= 0.975
    assert "workers 2" in started.text()
    assert "60,000 seen, 0 repeated, 0 lost" in started.text()
    print(started.text())
