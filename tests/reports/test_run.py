import json
import math
from pathlib import Path

import pytest

from manyhands.reports import Run


@pytest.fixture
def folder(tmp_path: Path, finished) -> Path:
    (tmp_path / "trace").mkdir()
    for name, data in finished.files().items():
        (tmp_path / "trace" / f"{name}.jsonl").write_bytes(data)
    return tmp_path


def test_what_a_run_says(folder: Path) -> None:
    run = Run(str(folder))
    assert run.folder == folder
    assert run.status == "finished"
    assert run.samples == 2000
    assert run.seconds == 20.0
    assert run.metrics == pytest.approx({"accuracy": 0.89, "loss": 1 / 19})
    assert run.parameters_digest == "ab" * 32
    assert run.summary().splitlines()[-1].endswith(str(folder))
    assert repr(run) == f"Run({str(folder)!r})"


def test_the_trace_is_read_once(folder: Path) -> None:
    run = Run(folder)
    assert run.trace is run.trace


def test_the_chrome_trace_is_written(folder: Path, tmp_path: Path) -> None:
    path = Run(folder).chrome(str(tmp_path / "chrome.json"))
    assert path == tmp_path / "chrome.json"
    assert json.loads(path.read_bytes())["traceEvents"]


def test_a_metric_that_was_not_finite_is_nan(tmp_path: Path, stage) -> None:
    stage.process("worker", 0).recorder.point("validation/loss", math.inf, samples=1)
    (tmp_path / "trace").mkdir()
    (tmp_path / "trace" / "worker-0.jsonl").write_bytes(stage.files()["worker-0"])
    assert math.isnan(Run(tmp_path).metrics["loss"])


def test_a_folder_that_is_no_run_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is not the folder of a run"):
        Run(tmp_path)
    with pytest.raises(FileNotFoundError, match="is not the folder of a run"):
        Run(tmp_path / "nowhere")
