import json
from dataclasses import replace

import pytest

from manyhands.cluster import Cluster
from manyhands.reports import (
    Comparison,
    Machine,
    failed,
    measure,
    read_results,
    write_results,
)


def some(finished) -> Comparison:
    run = measure(finished.trace(), repeat=1, folder="runs/a", target="accuracy >= 0.9", price=3.6)
    lost = failed(
        "worker 1 was killed",
        strategy="ssp(staleness=4)",
        kind="live",
        workers=2,
        repeat=0,
        seed=7,
        folder="runs/b",
    )
    return Comparison(
        machine=Machine(host="hostA", cores=2),
        strategies=("allreduce()", "ssp(staleness=4)"),
        workers=(2,),
        repeats=2,
        runs=(run, lost),
    )


def test_what_is_written_is_read_again(finished, tmp_path) -> None:
    comparison = some(finished)
    path = tmp_path / "new" / "results.json"
    write_results(comparison, path)
    assert read_results(path) == read_results(path.parent) == comparison
    assert [entry.name for entry in path.parent.iterdir()] == ["results.json"]
    assert json.loads(path.read_text())["schema"] == 1


def test_a_newer_schema_is_refused_in_words(tmp_path) -> None:
    path = tmp_path / "results.json"
    path.write_text('{"schema": 2, "runs": "elsewhere"}')
    with pytest.raises(ValueError, match=r"schema 2 .* reads up to 1"):
        read_results(path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 1, "runs": 3}', "\xff"])
def test_another_file_is_refused_in_words(tmp_path, text) -> None:
    path = tmp_path / "results.json"
    path.write_text(text, "latin-1")
    with pytest.raises(ValueError, match="is not the result of a comparison"):
        read_results(path)


def test_a_field_that_a_later_version_added_is_passed_over(finished, tmp_path) -> None:
    path = tmp_path / "results.json"
    write_results(some(finished), path)
    content = json.loads(path.read_text())
    content["moon"] = "full"
    path.write_text(json.dumps(content))
    assert read_results(path) == some(finished)


def test_a_run_that_failed_without_a_trace(finished) -> None:
    lost = some(finished).runs[1]
    assert (lost.status, lost.words, lost.rate) == ("failed", "worker 1 was killed", 0.0)
    assert lost.label == "ssp(staleness=4) × 2"


@pytest.mark.parametrize(("stored", "places"), [("host-1", ("host-1",)), (None, ())])
def test_results_of_a_version_with_one_host_of_servers_are_read(tmp_path, stored, places):
    cluster = Cluster.parse("2 workers, 1gbit")
    write_results(Comparison(layout=cluster), tmp_path / "results.json")
    fields = json.loads((tmp_path / "results.json").read_text())
    fields["layout"]["servers"] = stored
    (tmp_path / "results.json").write_text(json.dumps(fields))
    layout = read_results(tmp_path).layout
    assert layout is not None
    assert layout == replace(cluster, servers=places)
