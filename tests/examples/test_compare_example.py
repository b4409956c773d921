"""The example that compares strategies: real data, a small budget."""

import sys
from pathlib import Path

import pytest

from manyhands.reports import read_results
from support import ROOT


@pytest.mark.slow
def test_the_example_compares_strategies_on_real_data(start, tmp_path: Path) -> None:
    started = start(
        *(sys.executable, "-m", "manyhands", "compare", ROOT / "examples" / "compare.py"),
        *("--strategies", "single, local_sgd(every=8)", "--workers", "2", "--samples", "4096"),
        *("--repeats", "1", "--output", "out"),
    )
    assert started.finish(170) == 0, started.text()
    runs = read_results(tmp_path / "out").runs
    assert [(run.strategy, run.samples) for run in runs] == [
        ("single()", 4096),
        ("local_sgd()", 4096),
    ]
    for run in runs:
        final = run.validation["accuracy"].value[-1]
        assert final is not None
        assert final > 0.5
    assert (tmp_path / "out" / "report.html").stat().st_size < 6_000_000
