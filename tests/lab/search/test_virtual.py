"""Searches on the virtual clock: repeatable to the bit, whatever is killed."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import tiny_search

import manyhands as mh
from manyhands.lab.search.journal import SearchFolder
from support import wait_for

SCRIPT = Path(__file__).parents[1] / "tiny_search.py"


def found_by(method: str, output: Path, trials: int = 12, **options) -> mh.Searched:
    given = {"metric": "loss", "workers": 2, "virtual": True} | options
    return mh.search(tiny_search.alone, method, trials=trials, output=output, **given)


def content(folder: Path) -> list[dict]:
    """The results of a search, without the time that they took and how often they were begun."""
    lines = (folder / "trials.jsonl").read_text().splitlines()
    found = sorted((json.loads(line) for line in lines), key=lambda one: one["trial"]["number"])
    return [{name: one[name] for name in one if name not in ("wall", "attempts")} for one in found]


METHODS = ["random()", "population(size=4)", "evolution(size=4, tournament=2)", "swarm(size=4)"]


@pytest.mark.parametrize("method", METHODS)
def test_a_search_is_the_same_whenever_it_is_made(method, tmp_path) -> None:
    first = found_by(method, tmp_path / "first")
    again = found_by(method, tmp_path / "again")
    assert content(tmp_path / "first") == content(tmp_path / "again")
    assert first.best is not None
    assert first.best.trial == again.best.trial
    assert first.run.parameters_digest == again.run.parameters_digest
    other = found_by(method, tmp_path / "other", seed=7)
    assert [one.trial.values for one in other.results] != [
        one.trial.values for one in first.results
    ]


def test_a_folder_with_all_results_is_read_and_nothing_is_made(tmp_path) -> None:
    first = found_by("evolution(size=4)", tmp_path / "found")
    before = (tmp_path / "found" / "trials.jsonl").stat().st_mtime_ns
    again = found_by("evolution(size=4)", tmp_path / "found")
    assert again.results == first.results
    assert (tmp_path / "found" / "trials.jsonl").stat().st_mtime_ns == before
    with pytest.raises(ValueError, match=r"holds a search with other settings \(trials: 12 there"):
        found_by("evolution(size=4)", tmp_path / "found", trials=16)


def test_a_copied_member_goes_on_as_its_donor_would_have(tmp_path) -> None:
    found = found_by("population(size=4)", tmp_path / "found", trials=16)
    copies = [one for one in found.results if one.trial.reason.startswith("copy")]
    assert len(copies) == 3
    line = found.lineage(copies[-1].trial.number)
    assert [one.trial.until for one in line] == [one * 384 for one in range(1, 1 + len(line))]
    # Made again by hand, from the start of the first to the end of the last.
    before, folder = None, tmp_path / "by hand"
    for one in line:
        mh.simulate(
            tiny_search.alone,
            "single()",
            workers=1,
            values=one.trial.values,
            samples=one.trial.until,
            checkpoint=f"{one.trial.until} samples",
            resume=before,
            output=folder / str(one.trial.until),
            seed=0,
        )
        before = folder / str(one.trial.until)
    run = SearchFolder(tmp_path / "found").run(copies[-1].trial.number)
    assert mh.Run(before).parameters_digest == mh.Run(run).parameters_digest


def test_checkpoints_that_nobody_needs_are_removed(tmp_path) -> None:
    found_by("population(size=4)", tmp_path / "found")
    assert not [*(tmp_path / "found").glob("trials/*/checkpoints/*/manifest.json")]


def command(folder: Path) -> tuple[str | Path, ...]:
    given = ("--job", "alone", "--method", "population(size=4)", "--trials", "12")
    where = ("--metric", "loss", "--workers", "2", "--virtual", "--output", folder)
    return (sys.executable, "-m", "manyhands", "search", SCRIPT, *given, *where)


@pytest.mark.slow
def test_killed_trials_and_a_killed_search_end_with_the_same_winner(start, tmp_path) -> None:
    whole = start(*command(tmp_path / "whole"))
    assert whole.finish(120) == 0, whole.text()
    folder = tmp_path / "killed"
    killed = start(*command(folder))
    file = folder / "trials.jsonl"
    wait_for(lambda: file.exists() and file.read_text().count("\n") >= 1, 60, "a result")
    for _ in range(3):
        for child in killed.tree():
            child.send_signal(signal.SIGKILL)
            break
        time.sleep(0.1)
    wait_for(lambda: file.read_text().count("\n") >= 3, 60, "more results")
    os.kill(killed.process.pid, signal.SIGKILL)
    killed.process.wait()
    wait_for(lambda: not killed.tree(), 20, "no process is left")
    again = start(*command(folder))
    assert again.finish(120) == 0, again.text()
    assert content(folder) == content(tmp_path / "whole")


def test_strategies_are_searched_on_a_virtual_cluster(tmp_path) -> None:
    found = mh.search(
        tiny_search.strategies,
        "random()",
        trials=6,
        trial_workers=4,
        workers=4,
        virtual=True,
        times="lognormal(0.01, cv=0.5)",
        output=tmp_path / "found",
    )
    used = {one.trial.values["strategy"] for one in found.results}
    assert used == {"allreduce()", "asynchronous()"}
    for one in found.results:
        assert one.score is not None
        trace = (SearchFolder(tmp_path / "found").run(one.trial.number)).glob("trace/worker-*")
        assert len([*trace]) == 4


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_64_trials_of_16_workers_each_are_one_command(start, tmp_path) -> None:
    given = ("--job", "strategies", "--method", "evolution(size=8)", "--trials", "64")
    where = ("--trial-workers", "16", "--workers", "32", "--virtual", "--output", tmp_path / "many")
    found = start(sys.executable, "-m", "manyhands", "search", SCRIPT, *given, *where)
    assert found.finish(360) == 0, found.text()
    scores = [one["score"] for one in content(tmp_path / "many")]
    assert len(scores) == 64
    assert max(scores) >= max(scores[:8])
    assert "--strategy" in found.text()


def test_the_page_says_what_was_found(tmp_path) -> None:
    found = found_by("population(size=4)", tmp_path / "found")
    text = found.report.read_text()
    for words in (
        "Best loss",
        "The schedule of the winner",
        "The values of all trials",
        "Who came of whom",
        "copy of",
    ):
        assert words in text
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org", "")


def test_what_cannot_be_searched_is_refused_before_anything_is_made(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    fixed = tiny_search.job(0.1, 0.5, 8, "single()")
    with pytest.raises(ValueError, match="a search needs a job with free parameters"):
        mh.search(fixed, virtual=True)
    with pytest.raises(ValueError, match="metric 'f1' is none of the job's: loss, accuracy"):
        found_by("random()", tmp_path / "a", metric="f1")
    with pytest.raises(ValueError, match="a trial has 4 workers, of 2 in all"):
        found_by("random()", tmp_path / "a", trial_workers=4)
    with pytest.raises(ValueError, match="use 8 or 12 trials, not 10"):
        found_by("population(size=4)", tmp_path / "a", trials=10)
    with pytest.raises(ValueError, match="describe virtual trials"):
        found_by("random()", tmp_path / "a", virtual=False, bandwidth="1gbit")
    assert not (tmp_path / "a").exists()


def test_a_trial_that_diverges_is_the_worst_and_says_so(tmp_path) -> None:
    def job(lr=mh.free.choice(0.05, 1e30)) -> mh.Job:
        return tiny_search.job(lr, 0.0, 8, "single()")

    found = mh.search(
        job, trials=8, metric="loss", workers=2, virtual=True, output=tmp_path / "found"
    )
    failed = [one for one in found.results if one.trial.values["lr"] > 1]
    assert failed
    for one in failed:
        assert one.score is None
        assert one.failure
    assert found.best.trial.values == {"lr": 0.05}
