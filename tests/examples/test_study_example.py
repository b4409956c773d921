"""The study in its small version: it runs, and leaves what its page is made of."""

import json
import sys
from xml.etree import ElementTree as ET

import pytest

from support import ROOT


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_quick_study_leaves_its_results_and_its_plot(start, tmp_path):
    command = (sys.executable, ROOT / "examples" / "study.py", "--quick", "--output", tmp_path)
    started = start(*command)
    assert started.finish(280) == 0, started.text()
    study = json.loads((tmp_path / "quick.json").read_text(encoding="utf-8"))
    settings, runs = study["settings"], study["runs"]
    assert len(runs) == 6 * len(settings["workers"])
    assert {run["workers"] for run in runs} == set(settings["workers"])
    assert len(study["pace"]) == 5 * len(settings["workers"])
    assert all(one["seconds_per_global_batch"] > 0 for one in study["pace"])
    for run in runs:
        reached = run["seconds_to_target"]
        assert (reached is None) == (max(run["accuracy"]) < settings["target"])
        assert reached is None or 0 < reached <= run["seconds"] * 1.001
        assert 1 <= len(run["accuracy"]) <= settings["epochs"]
    assert len(study["rates"]) == 6
    assert all(len(one["accuracy"]) == settings["epochs"] for one in study["rates"])
    synchronous = [run["accuracy"] for run in runs if run["label"] == "synchronous"]
    assert synchronous[0] == pytest.approx(synchronous[1], abs=0.005)
    plot = ET.fromstring((tmp_path / "quick.svg").read_text(encoding="utf-8"))  # noqa: S314 - our own
    words = [text.text for text in plot.iter("{http://www.w3.org/2000/svg}text")]
    assert {"workers", "learning rate"} <= set(words)
    again = start(*command)
    assert again.finish(120) == 0
    assert again.text() == ""
