import pytest
from comparisons import compared, repeated

from manyhands.reports import write_results
from manyhands.reports.comparison.load_comparisons import gather


def put(stage, folder, **settings) -> None:
    """A run's folder, as if it had been made."""
    agent = stage.process("agent")
    for name, value in settings.items():
        agent.recorder.setting(name, value, "command line")
    agent.recorder.event("end", {"status": "finished", "words": ""})
    worker = stage.process("worker", 0)
    worker.recorder.span("compute", 0.0, 1.0, 0)
    worker.clock.now = 1.0
    worker.recorder.count(samples=100, steps=1)
    worker.recorder.samples(100)
    (folder / "trace").mkdir(parents=True)
    for name, data in stage.files().items():
        (folder / "trace" / f"{name}.jsonl").write_bytes(data)


def test_results_by_file_or_folder(tmp_path) -> None:
    comparison = compared(*repeated("a()", 1000))
    write_results(comparison, tmp_path / "results.json")
    for path in (tmp_path, tmp_path / "results.json"):
        (source,) = gather([path])
        assert (source.comparison, source.folder) == (comparison, tmp_path)


def test_runs_are_compared_with_each_other(make_stage, tmp_path) -> None:
    alike = {"workers": "1", "global_batch": "64", "epochs": "2", "torch": "2.13"}
    put(make_stage(), tmp_path / "one", strategy="a()", seed="0", **alike)
    put(make_stage(), tmp_path / "two", strategy="a()", seed="1", **alike)
    put(make_stage(), tmp_path / "three", strategy="b()", seed="0", **alike)
    (source,) = gather([tmp_path], price=2.0, target="accuracy >= 0.5")
    found = source.comparison
    assert found.job == {"global_batch": "64", "epochs": "2"}
    assert (found.torch, found.budget, found.repeats) == ("2.13", "2 epochs", 2)
    assert found.target == "accuracy >= 0.5"
    assert sorted((run.strategy, run.repeat) for run in found.runs) == [
        ("a()", 0),
        ("a()", 1),
        ("b()", 0),
    ]
    assert all(run.cost == pytest.approx(2.0 / 3600) for run in found.runs)
    assert {run.folder for run in found.runs} == {
        str(tmp_path / name) for name in ("one", "two", "three")
    }
    (again,) = gather([tmp_path / "one", tmp_path / "three"])
    assert len(again.comparison.runs) == 2


def test_runs_that_differ_in_more_than_their_seeds_are_not_repeats(make_stage, tmp_path) -> None:
    alike = {"strategy": "a()", "workers": "1", "cores": "2"}
    put(make_stage(), tmp_path / "one", seed="0", global_batch="64", **alike)
    put(make_stage(), tmp_path / "two", seed="1", global_batch="64", **alike)
    put(make_stage(), tmp_path / "three", seed="0", global_batch="128", clip="1.0", **alike)
    (source,) = gather([tmp_path])
    assert sorted((run.strategy, run.repeat) for run in source.comparison.runs) == [
        ("a(), global_batch 128, clip 1.0", 0),
        ("a(), global_batch 64", 0),
        ("a(), global_batch 64", 1),
    ]
    (same,) = gather([tmp_path / "one", tmp_path / "two"])
    assert {run.strategy for run in same.comparison.runs} == {"a()"}


def test_live_and_virtual_runs_are_comparisons_of_their_own(make_stage, tmp_path) -> None:
    put(make_stage("virtual"), tmp_path / "one", strategy="a()")
    put(make_stage(), tmp_path / "two", strategy="a()")
    found = gather([tmp_path])
    assert [[run.kind for run in source.comparison.runs] for source in found] == [
        ["live"],
        ["virtual"],
    ]


def test_a_place_where_nothing_is(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match="contains neither results nor runs"):
        gather([tmp_path])
    with pytest.raises(FileNotFoundError, match="contains neither results nor runs"):
        gather([tmp_path / "nowhere"])
