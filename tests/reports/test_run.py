import csv
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


def test_every_curve_has_samples_seconds_and_values(folder: Path) -> None:
    run = Run(folder)
    curves = run.curves()
    assert {"validation/accuracy", "validation/loss", "training/loss", "run/throughput"} <= {
        *curves
    }
    for rows in curves.values():
        assert all(len(row) == 3 for row in rows)
        assert [seconds for _, seconds, _ in rows] == sorted(seconds for _, seconds, _ in rows)
    assert curves["validation/accuracy"][-1][2] == pytest.approx(run.metrics["accuracy"])
    assert curves["run/throughput"]


def test_curves_and_csv_are_the_same(folder: Path, tmp_path: Path) -> None:
    run = Run(folder)
    with run.to_csv(tmp_path / "curves.csv").open(encoding="utf-8", newline="") as file:
        rows = [*csv.DictReader(file)]
    read: dict[str, list[tuple[int, float, float]]] = {}
    for row in rows:
        point = int(row["samples"]), float(row["seconds"]), float(row["value"])
        read.setdefault(f"{row['split']}/{row['metric']}", []).append(point)
    assert read == run.curves()


def test_curves_as_a_data_frame(folder: Path) -> None:
    pytest.importorskip("pandas")
    run = Run(folder)
    frame = run.to_pandas()
    assert len(frame) == sum(map(len, run.curves().values()))
    assert run.to_pandas("runs")["samples"].tolist() == [2000]


def test_figures_are_numbers_and_texts(folder: Path) -> None:
    figures = Run(folder).figures()
    assert figures["samples"] == 2000
    assert figures["final.accuracy"] == pytest.approx(0.89)
    assert all(isinstance(value, (int, float, str)) for value in figures.values())
