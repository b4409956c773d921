"""Searches with live trials: exact copies, killed processes, the same values on all ranks."""

import json
import os
import shlex
import signal
import sys
from pathlib import Path

import psutil
import pytest

import manyhands as mh
from manyhands.lab.design import Budget, Script
from manyhands.lab.search.journal import SearchFolder
from manyhands.lab.search.making import LiveTrials, TrialSettings
from manyhands.lab.search.trial import Trial
from support import wait_for

SCRIPT = Path(__file__).parents[1] / "tiny_search.py"
VALUES = {"lr": 0.05, "momentum": 0.9, "width": 16}


@pytest.fixture
def made(tmp_path):
    """Makes trials at the same time, each from the folder of another one, and ends them."""
    making = LiveTrials(Script(path=SCRIPT, job="alone"), TrialSettings(Budget(), seed=5))
    attempts = []

    def make(*trials: tuple[str, int, str | None, dict]) -> None:
        begun = []
        for name, until, resume, values in trials:
            trial = Trial(number=0, values=values, until=until)
            source = tmp_path / resume if resume else None
            one = making.begin(
                trial, tmp_path / name, tmp_path / f"{name}.log", source, goes_on=True
            )
            begun.append(one)
        attempts.extend(begun)
        for one in begun:
            wait_for(one.is_over, 150, "a trial")
            assert one.failure() == ("", False)

    yield make
    for one in attempts:
        one.end()


@pytest.mark.slow
def test_a_copied_trial_goes_on_bit_for_bit_as_the_donor_would_have(made, tmp_path) -> None:
    # An epoch is 12 batches of 32: the cut is in the middle of the second one.
    made(("donor", 640, None, VALUES), ("in one go", 1280, None, VALUES))
    changed = VALUES | {"lr": 0.1}
    made(("donor goes on", 1280, "donor", VALUES), ("copy", 1280, "donor", VALUES))
    made(("other rate", 1280, "donor", changed))
    digests = {
        name: mh.Run(tmp_path / name).parameters_digest
        for name in ("in one go", "donor goes on", "copy", "other rate")
    }
    assert digests["copy"] == digests["donor goes on"] == digests["in one go"]
    assert digests["other rate"] != digests["copy"]


def search(start, folder: Path, *options: str, job: str = "alone", **environment: str):
    command = (sys.executable, "-m", "manyhands", "search", SCRIPT, "--job", job)
    given = ("--workers", "2", "--output", folder, *options)
    return start(*command, *given, **environment)


def results(folder: Path) -> list[dict]:
    """The results of a search, without the time that they took and how often they were begun."""
    lines = (folder / "trials.jsonl").read_text().splitlines()
    found = sorted((json.loads(line) for line in lines), key=lambda one: one["trial"]["number"])
    taken = ("wall", "seconds", "attempts")
    return [{name: one[name] for name in one if name not in taken} for one in found]


POPULATION = ("--method", "population(size=2)", "--trials", "4", "--metric", "loss")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_workers_trials_and_searches_end_with_the_same_winner(start, tmp_path) -> None:
    whole = search(start, tmp_path / "whole", *POPULATION)
    assert whole.finish(300) == 0, whole.text()

    killed = search(start, tmp_path / "killed", *POPULATION)
    wait_for(lambda: killed.named("manyhands.live.worker.process"), 60, "a worker")
    worker = killed.named("manyhands.live.worker.process")
    worker.send_signal(signal.SIGKILL)
    wait_for(lambda: not worker.is_running(), 60, "its end")

    def trials() -> list[psutil.Process]:
        return [one for one in killed.tree() if "train" in one.cmdline()]

    wait_for(lambda: len(results_of(killed, tmp_path)) >= 1, 120, "a result")
    wait_for(trials, 60, "a trial")
    trials()[0].send_signal(signal.SIGKILL)
    wait_for(lambda: len(results_of(killed, tmp_path)) >= 3, 120, "two more results")
    os.kill(killed.process.pid, signal.SIGKILL)
    killed.process.wait()
    wait_for(lambda: not killed.tree(), 30, "no process is left")

    again = search(start, tmp_path / "killed", *POPULATION)
    assert again.finish(300) == 0, again.text()
    assert results(tmp_path / "killed") == results(tmp_path / "whole")
    best = [line for line in whole.text().splitlines() if line.startswith("Best loss")]
    assert best
    assert best[0] in again.text()


def results_of(started, tmp_path: Path) -> list[dict]:
    assert started.process.poll() is None, started.text()
    file = tmp_path / "killed" / "trials.jsonl"
    return results(tmp_path / "killed") if file.exists() else []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_all_ranks_of_a_trial_see_the_same_values(start, tmp_path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    options = ("--trials", "2", "--trial-workers", "4", "--workers", "4", "--seed", "2")
    found = search(start, tmp_path / "found", *options, job="strategies", NOTE_VALUES=str(notes))
    assert found.finish(240) == 0, found.text()
    trials = [one["trial"]["values"] for one in results(tmp_path / "found")]
    assert {one["strategy"] for one in trials} == {"allreduce()", "asynchronous()"}
    for number, trial in enumerate(trials):
        expected = repr((trial["lr"], 0.5, 8, trial["strategy"]))
        seen = [file for file in notes.iterdir() if file.read_text() == expected]
        # Four workers, at least, and the agent.
        assert len(seen) >= 5, (number, trial, [one.read_text() for one in notes.iterdir()])
        settings = SearchFolder(tmp_path / "found").run(number)
        assert mh.Run(settings).status == "finished"


@pytest.mark.slow
def test_the_winner_is_trained_by_the_command_that_is_printed(start, tmp_path) -> None:
    found = search(start, tmp_path / "found", "--trials", "2", "--epochs", "1")
    assert found.finish(120) == 0, found.text()
    command = next(line for line in found.text().splitlines() if "manyhands train" in line)
    assert "--set lr=" in command
    best = results(tmp_path / "found")
    assert all(one["score"] is not None for one in best)
    words = shlex.split(command)
    again = start(sys.executable, "-m", *words, "--output", tmp_path / "again")
    assert again.finish(60) == 0, again.text()
    metrics = mh.Run(tmp_path / "again").metrics
    assert metrics["accuracy"] == max(one["score"] for one in best)
