"""ResNet50V2 trains on enlarged photographs under each strategy that the example names."""

import os
import re
import sys
from pathlib import Path

import pytest

from support import ROOT

EXAMPLE = ROOT / "examples" / "resnet.py"
NAMED = re.findall(r'--strategy "([^"]+)" --workers (\d)', EXAMPLE.read_text(encoding="utf-8"))
PLACES = ("cifar10/data_batch_1.bin", "cifar-10-batches-bin/data_batch_1.bin")


@pytest.fixture
def photographs(monkeypatch):
    """The folder that has CIFAR-10."""
    for folder in (Path(os.environ.get("MANYHANDS_DATA", ".")), ROOT / ".data"):
        if any((folder / place).exists() for place in PLACES):
            monkeypatch.setenv("MANYHANDS_DATA", str(folder))
            return
    pytest.skip("no CIFAR-10: neither MANYHANDS_DATA nor .data has it")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("photographs")
def test_every_strategy_that_the_example_names_trains_it(start):
    parameters = {}
    for how, workers in NAMED:
        command = (sys.executable, "-m", "manyhands", "train", EXAMPLE, "--samples", "64")
        started = start(*command, "--strategy", how, "--workers", workers)
        assert started.finish(280) == 0, started.text()
        assert "64 seen, 0 repeated, 0 lost" in started.text()
        parameters[how] = re.search(r"parameters +([0-9a-f]{64})", started.text())[1]
    assert len(parameters) == 3
    # Batch normalisation looks at a worker's samples: alike here, but not for microbatches.
    assert parameters["allreduce()"] == parameters["fully_sharded()"]
