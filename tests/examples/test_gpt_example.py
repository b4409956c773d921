"""The example trains under each strategy that it names, to the same loss."""

import re
import sys

import pytest

from support import ROOT

EXAMPLE = ROOT / "examples" / "gpt.py"
NAMED = re.findall(r'--strategy "([^"]+)" --workers (\d)', EXAMPLE.read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_strategy_that_the_example_names_trains_it_to_the_same_loss(start):
    losses = {}
    for how, workers in NAMED:
        command = (sys.executable, "-m", "manyhands", "train", EXAMPLE, "--samples", "160")
        started = start(*command, "--strategy", how, "--workers", workers)
        assert started.finish(200) == 0, started.text()
        losses[how] = float(re.search(r"validation .*loss ([\d.]+)", started.text())[1])
    assert len(losses) == 5
    assert max(losses.values()) - min(losses.values()) < 0.01, losses
