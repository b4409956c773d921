"""`manyhands report` and `manyhands tensorboard`."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from manyhands.cli.app import app
from manyhands.reports import Comparison, RunResult, write_results
from manyhands.trace import Header, Recorder, trace_file


def a_run(folder: Path, strategy: str, seconds: float) -> Path:
    header = Header(role="worker", host="a", pid=1, boot="b", clock=0.0, wall=0.0)
    path = trace_file(folder, header)
    path.parent.mkdir(parents=True)
    with path.open("ab") as file:
        recorder = Recorder(header, file.write, lambda: seconds)
        recorder.setting("strategy", strategy, "script")
        recorder.span("compute", 0.0, seconds, 0)
        recorder.samples(1000)
        recorder.event("end", {"status": "finished", "words": ""})
        recorder.flush()
    return folder


def test_runs_become_a_page_and_a_table(tmp_path: Path) -> None:
    one, two = a_run(tmp_path / "1", "a()", 1.0), a_run(tmp_path / "2", "b()", 2.0)
    result = CliRunner().invoke(app, ["report", str(one), str(two)])
    assert result.exit_code == 0, result.output
    assert "a() had the highest throughput (1,000 samples/s)" in " ".join(result.output.split())
    assert "1/report.html: open it in a browser" in result.output.replace("\n", "")
    assert "2 strategies" not in (one / "report.html").read_text("utf-8")
    assert "a() and b() compared" in (one / "report.html").read_text("utf-8")


def test_results_are_drawn_again_where_they_lie(tmp_path: Path) -> None:
    run = RunResult(
        strategy="a()",
        kind="virtual",
        workers=2,
        repeat=0,
        seed=0,
        folder="gone",
        status="finished",
        samples=10,
        seconds=1.0,
        rate=10.0,
    )
    write_results(Comparison(runs=(run,)), tmp_path / "results.json")
    for path in (tmp_path, tmp_path / "results.json"):
        result = CliRunner().invoke(app, ["report", str(path)])
        assert result.exit_code == 0, result.output
        assert (tmp_path / "report.html").exists()
        (tmp_path / "report.html").unlink()


def test_nothing_to_report_is_said_in_words(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert result.exit_code == 2
    assert "contains neither results nor runs" in result.output


def test_without_plotly_there_is_a_table_and_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    run = a_run(tmp_path / "1", "a()", 1.0)
    result = CliRunner().invoke(app, ["report", str(run)])
    assert result.exit_code == 0
    assert "ran alone" in result.output
    assert "pip install 'manyhands[report]'" in result.output
    asked = CliRunner().invoke(app, ["report", str(run), "--output", str(tmp_path / "x.html")])
    assert asked.exit_code == 1


def test_scalars_for_tensorboard(tmp_path: Path) -> None:
    run = a_run(tmp_path / "1", "a()", 1.0)
    result = CliRunner().invoke(app, ["tensorboard", str(run)])
    assert result.exit_code == 0, result.output
    assert list((run / "tensorboard").iterdir())
    result = CliRunner().invoke(app, ["tensorboard", str(tmp_path)])
    assert result.exit_code == 2


def test_a_report_needs_no_torch() -> None:
    code = (
        "import sys, manyhands.cli.report, manyhands.cli.tensorboard; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
