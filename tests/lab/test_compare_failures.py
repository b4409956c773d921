"""Comparisons of which some runs fail: they are named everywhere, and the command's exit code."""

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from manyhands.reports import read_results
from support import Started

SCRIPT = """
    import torch, torch.nn.functional as F
    import manyhands as mh

    data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randint(0, 2, (64,)))
    calls = 0


    def loss(outputs, targets):
        global calls
        calls += 1
        # In the middle of training, and only where a batch is divided.
        if calls > 3 and len(targets) < 16 and outputs.requires_grad:
            raise RuntimeError("a part is missing")
        return F.cross_entropy(outputs, targets)


    job = mh.Job(
        model=lambda: torch.nn.Linear(4, 2),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=loss,
        data=data,
        validation=data,
        global_batch=16,
        epochs=2,
    )
"""
LINE = 13
"""Of the `raise`, in the file."""


@pytest.mark.parametrize(
    "options",
    [
        pytest.param((), marks=pytest.mark.slow, id="live"),
        pytest.param(("--virtual",), id="virtual"),
    ],
)
@pytest.mark.timeout(600)
def test_four_of_six_runs_failed(
    options: tuple[str, ...], start: Callable[..., Started], tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT).lstrip(), encoding="utf-8")
    assert "raise" in script.read_text(encoding="utf-8").splitlines()[LINE - 1]
    run = start(
        *(sys.executable, "-m", "manyhands", "compare", "script.py", "--output", "out"),
        *("--strategies", "single, synchronous, asynchronous", "--workers", "2"),
        *("--repeats", "2", *options),
    )
    assert run.finish(500) == 1, run.text()
    at, text = f"script.py:{LINE}", run.text()
    assert f"4 of 6 runs failed, at {at}" in text
    assert text.count(at) >= 4

    results = read_results(tmp_path / "out")
    failed = [one for one in results.runs if one.status == "failed"]
    assert [one.strategy for one in failed].count("synchronous()") == 2
    assert len(failed) == 4
    assert {one.where for one in failed} == {at}
    assert all("RuntimeError: a part is missing" in one.words for one in failed)
    (verdict,) = results.verdicts
    assert verdict.failed == 4
    assert verdict.strategy == "single()"
    assert "2 of 2 runs of synchronous() and 2 of 2 runs of asynchronous() failed" in (
        verdict.recommendation
    )

    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "4 runs failed" in page
    assert page.count(at) >= 4


def test_without_a_failed_run_the_exit_code_is_zero(
    start: Callable[..., Started], tmp_path: Path
) -> None:
    text = textwrap.dedent(SCRIPT).replace("calls > 3", "False").lstrip()
    (tmp_path / "script.py").write_text(text, encoding="utf-8")
    run = start(
        *(sys.executable, "-m", "manyhands", "compare", "script.py", "--output", "out"),
        *("--strategies", "synchronous", "--workers", "2", "--repeats", "1", "--virtual"),
    )
    assert run.finish() == 0, run.text()
