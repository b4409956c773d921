"""Tables of runs: what is exported is what was measured, to the bit."""

import json
import sys
from pathlib import Path

import msgspec
import pytest
from comparisons import STALE, compared, repeated, run

from manyhands.reports import Comparison, Curve, PhaseBytes, Run, failed

LOSS = Curve(seconds=(0.1, 1 / 3), samples=(10, 20), value=(2.5, None))


def a_comparison() -> Comparison:
    lost = failed(
        'killed, "out" of memory\nline 2',
        strategy="b()",
        kind="live",
        workers=2,
        repeat=3,
        seed=3,
        folder="runs/lost",
    )
    return compared(
        *repeated("a(x=1)", 1000 / 3, loss=LOSS, time_to_target=0.1 + 0.2),
        *repeated("b()", 700, staleness=STALE, parameters_sha256="c0ffee", threads=1),
        lost,
    )


def test_a_csv_is_read_back_by_pandas_to_the_bit(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    comparison = a_comparison()
    path = comparison.to_csv(tmp_path / "new" / "runs.csv")
    read = pandas.read_csv(path)
    assert len(read) == len(comparison.runs)
    for (_, row), one in zip(read.iterrows(), comparison.runs, strict=True):
        for name in ("strategy", "kind", "workers", "repeat", "seed", "status", "rate", "seconds"):
            assert row[name] == getattr(one, name), name
        for part, share in one.shares.items():
            assert row[f"shares.{part}"] == share
        if one.time_to_target is None:
            assert pandas.isna(row["time_to_target"])
        else:
            assert row["time_to_target"] == 0.1 + 0.2
        if one.validation:
            assert row["final.accuracy"] == one.validation["accuracy"].value[-1]
        if one.staleness:
            assert (row["staleness.mean"], row["staleness.p99"]) == (1.0, 2)
    assert read["words"].iloc[-1] == 'killed, "out" of memory\nline 2'
    assert not {"validation", "loss", "staleness", "staleness.histogram"} & set(read.columns)


def test_every_single_value_of_a_run_is_a_column(tmp_path: Path) -> None:
    comparison = a_comparison()
    path = comparison.to_jsonl(tmp_path / "runs.jsonl")
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert len({tuple(row) for row in rows}) == 1, "all rows have the same columns"
    grouped = {name.split(".")[0] for name in rows[0]}
    fields = set(comparison.runs[0].__struct_fields__)
    # Curves have a table of their own; a run without a sweep, traffic or a codec has no columns of
    # them.
    curves = {"validation", "loss", "measures", "throughput", "bytes_sent"}
    absent = {"swept", "traffic", "coding"}
    assert grouped - {"final"} == fields - curves - absent
    assert rows[0]["parameters_sha256"] is None
    assert rows[3]["parameters_sha256"] == "c0ffee"


def test_curves_have_a_row_for_every_point(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    comparison = a_comparison()
    read = pandas.read_csv(comparison.to_csv(tmp_path / "curves.csv", "curves"))
    assert [*read.columns] == [
        *("strategy", "kind", "workers", "repeat", "seed"),
        *("split", "metric", "seconds", "samples", "value"),
    ]
    finished = [one for one in comparison.runs if one.status == "finished"]
    points = sum(len(c.value) for one in finished for c in (*one.validation.values(), one.loss))
    assert len(read) == points
    accuracy = read.query("strategy == 'b()' and repeat == 1 and metric == 'accuracy'")
    assert tuple(accuracy["value"]) == finished[4].validation["accuracy"].value
    assert tuple(accuracy["seconds"]) == finished[4].validation["accuracy"].seconds
    training = read.query("split == 'training' and repeat == 0")
    assert (training["seconds"].iloc[1], training["metric"].iloc[1]) == (1 / 3, "loss")
    assert pandas.isna(training["value"].iloc[1])
    frame = comparison.frame("curves")
    assert frame.equals(read)


def test_staleness_has_a_row_for_every_number_of_versions(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    read = pandas.read_csv(a_comparison().to_csv(tmp_path / "s.csv", "staleness"))
    first = read[read["repeat"] == 0]
    assert dict(zip(first["versions"], first["updates"], strict=True)) == STALE.histogram
    assert set(read["strategy"]) == {"b()"}


def test_without_pandas_it_says_what_to_install_and_files_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    comparison = a_comparison()
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'manyhands\[pandas\]'"):
        comparison.frame()
    assert comparison.to_csv(tmp_path / "runs.csv").stat().st_size > 0
    with pytest.raises(ValueError, match="there is no table 'points': use 'runs', 'curves'"):
        comparison.to_csv(tmp_path / "points.csv", "points")


def test_a_comparison_of_nothing_is_an_empty_table(tmp_path: Path) -> None:
    assert Comparison().to_csv(tmp_path / "runs.csv").read_text("utf-8") == "\n"
    assert Comparison().to_jsonl(tmp_path / "runs.jsonl").read_text("utf-8") == ""


def test_a_run_has_the_tables_of_its_own(finished, tmp_path: Path) -> None:
    trace = finished.trace()
    (tmp_path / "run" / "trace").mkdir(parents=True)
    one = Run(tmp_path / "run")
    vars(one)["trace"] = trace
    (row,) = [json.loads(x) for x in one.to_jsonl(tmp_path / "r", "runs").read_text().splitlines()]
    assert row["samples"] == one.samples
    assert row["seconds"] == one.seconds
    lines = one.to_csv(tmp_path / "c").read_text("utf-8").splitlines()
    assert len(lines) > 1
    assert lines[0].startswith("strategy,kind,workers,repeat,seed,split,metric")


def test_a_run_without_curves_has_a_row_nevertheless(tmp_path: Path) -> None:
    comparison = compared(run("a()", 100, validation={}))
    assert len(comparison.to_csv(tmp_path / "r.csv").read_text("utf-8").splitlines()) == 2
    assert comparison.to_csv(tmp_path / "c.csv", "curves").read_text("utf-8") == "\n"


def test_sweeps_traffic_and_measures_are_columns_and_rows(tmp_path: Path) -> None:
    run = msgspec.structs.replace(
        a_comparison().runs[0],
        swept={"wait_for": 3},
        traffic={"training": PhaseBytes(payload_between=8)},
        measures={"spread": Curve(seconds=(1.0,), samples=(64,), value=(0.5,))},
    )
    comparison = Comparison(runs=(run,))
    (row,) = lines(comparison.to_jsonl(tmp_path / "runs.jsonl"))
    assert row["swept.wait_for"] == 3
    assert row["traffic.training.payload_between"] == 8
    points = lines(comparison.to_jsonl(tmp_path / "curves.jsonl", "curves"))
    measured = [point for point in points if point["split"] == "measures"]
    assert [(point["metric"], point["value"]) for point in measured] == [("spread", 0.5)]
    assert measured[0]["swept.wait_for"] == 3


def lines(path: Path) -> list[dict]:
    return [*map(json.loads, path.read_text("utf-8").splitlines())]
