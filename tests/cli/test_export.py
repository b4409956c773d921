"""`manyhands export`: a comparison or runs as files for other programs."""

import json
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import manyhands as mh
from manyhands.cli.app import app
from manyhands.reports import read_results

TABLES = {
    f"{table}.{kind}" for table in ("runs", "curves", "staleness") for kind in ("csv", "jsonl")
}


@pytest.fixture(scope="module")
def comparison(tmp_path_factory) -> Path:
    """A real comparison on a virtual cluster."""
    folder = tmp_path_factory.mktemp("comparison")
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(256, 4, generator=generator)
    data = torch.utils.data.TensorDataset(inputs, (inputs.sum(1) > 0).long())
    job = mh.Job(
        model=lambda: torch.nn.Linear(4, 2),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=torch.nn.functional.cross_entropy,
        data=data,
        validation=data,
        global_batch=16,
        epochs=3,
    )
    mh.compare(
        *(job, "synchronous, asynchronous"),
        workers=(2, 4),
        repeats=2,
        virtual=True,
        target="accuracy >= 0.9",
        output=folder,
    )
    return folder


def export(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["export", *map(str, arguments)])
    return result.exit_code, result.output


def test_all_tables_and_charts_are_written(comparison: Path, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("matplotlib")
    code, text = export(comparison / "results.json", "--output", tmp_path / "out")
    assert code == 0, text
    names = {path.name for path in (tmp_path / "out").iterdir()}
    charts = {path for path in names if path.endswith((".svg", ".pdf"))}
    assert names - charts == TABLES
    assert {"accuracy-seconds.svg", "training-loss.pdf", "scaling.svg", "staleness.pdf"} <= charts
    assert len(charts) % 2 == 0
    stored = read_results(comparison)
    read = pandas.read_csv(tmp_path / "out" / "runs.csv")
    assert [*read["rate"]] == [run.rate for run in stored.runs]
    assert [*read["folder"]] == [run.folder for run in stored.runs]
    curves = pandas.read_csv(tmp_path / "out" / "curves.csv")
    assert curves.equals(stored.frame("curves"))
    assert str(comparison) not in "".join(
        path.read_text("utf-8") for path in (tmp_path / "out").iterdir() if path.name in TABLES
    )


def test_only_the_formats_that_were_asked_for_are_written(comparison: Path, tmp_path: Path) -> None:
    code, text = export(comparison, "--format", "JSONL, csv", "--output", tmp_path / "out")
    assert code == 0, text
    assert {path.name for path in (tmp_path / "out").iterdir()} == TABLES
    code, text = export(comparison, "--format", "csv,png", "--output", tmp_path / "never")
    assert code == 2
    assert "there is no format 'png': use csv, jsonl, svg, pdf" in text
    assert not (tmp_path / "never").exists()


def test_folders_of_runs_are_exported_too(comparison: Path, tmp_path: Path) -> None:
    runs = sorted((comparison / "runs").iterdir())[:2]
    code, text = export(*runs, "--format", "jsonl", "--output", tmp_path)
    assert code == 0, text
    rows = [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()]
    assert sorted(row["folder"] for row in rows) == [run.name for run in runs]
    code, text = export(tmp_path / "nothing")
    assert code == 2
    assert "contains neither results nor runs" in text


def test_without_matplotlib_tables_are_written(
    comparison: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, text = export(comparison, "--output", tmp_path / "all")
    assert code == 0
    assert "pip install 'manyhands[figures]'" in text
    assert {path.name for path in (tmp_path / "all").iterdir()} == TABLES
    code, _ = export(comparison, "--format", "svg", "--output", tmp_path / "svg")
    assert code == 1
