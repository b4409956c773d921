"""Comparisons on real processes: what is kept, what is found, and that nothing is left."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from lab_script import write_script

from manyhands.cli.compare import design_of, read_numbers
from manyhands.lab.design import Script
from manyhands.reports import read_results
from manyhands.reports.comparison.verdict import verdict
from support import Started, wait_for


@pytest.fixture
def compare(start: Callable[..., Started], tmp_path: Path) -> Callable[..., Started]:
    """Start a comparison of the script in the folder of the test."""

    def begin(*options: str, output: str = "out") -> Started:
        return start(
            *(sys.executable, "-m", "manyhands", "compare", "script.py", "--output", output),
            *options,
        )

    return begin


def traces(folder: Path) -> dict[str, int]:
    """The runs that are there, and when their agents wrote last."""
    found = folder.glob("out/runs/*/trace/agent-0.jsonl")
    return {path.parts[-3]: path.stat().st_mtime_ns for path in found}


@pytest.mark.slow
def test_a_comparison_that_was_killed_repeats_no_finished_run(compare, tmp_path: Path) -> None:
    write_script(tmp_path)
    options = ("--strategies", "single, asynchronous", "--workers", "2", "--repeats", "1")
    first = compare(*options)
    wait_for((tmp_path / "out" / "results.json").exists, 60, "the first result")
    done = traces(tmp_path)
    second = tmp_path / "out" / "runs" / "0-1-asynchronous-2" / "trace"
    wait_for(lambda: first.tree() and second.exists(), 60, "the second run")
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.wait()
    wait_for(lambda: not first.tree(), 30, "its processes gone with it")
    partial = read_results(tmp_path / "out")
    assert [run.strategy for run in partial.runs] == ["single()"]

    again = compare(*options)
    assert again.finish() == 0, again.text()
    assert "1 of 2 runs were made before" in again.text()
    results = read_results(tmp_path / "out")
    assert [(run.strategy, run.status) for run in results.runs] == [
        ("single()", "finished"),
        ("asynchronous()", "finished"),
    ]
    assert results.runs[0] == partial.runs[0]
    assert {name: at for name, at in traces(tmp_path).items() if name in done} == done
    assert (tmp_path / "out" / "logs" / "0-1-asynchronous-2.log").read_text(encoding="utf-8")

    other = compare("--strategies", "single, asynchronous", "--workers", "1", "--repeats", "1")
    assert other.finish() == 2
    assert "workers: 2 there, 1 now" in other.text()


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_any_end_leaves_nothing_running(compare, tmp_path: Path, number: int) -> None:
    write_script(tmp_path, samples=100_000, epochs=50)
    started = compare("--strategies", "asynchronous", "--workers", "2", "--repeats", "1")
    wait_for(lambda: started.worker(1) is not None, 60, "workers at work")
    run = started.named("train")
    groups = {os.getpgid(child.pid) for child in started.tree()}
    assert os.getpgid(started.process.pid) not in groups, "Ctrl-C reaches the comparison alone"
    os.kill(started.process.pid, number)
    assert started.finish(30) == (130 if number == signal.SIGINT else 128 + number)
    wait_for(lambda: not started.tree(), 5, "everything gone")
    assert run is None or not psutil.pid_exists(run.pid)
    if number == signal.SIGINT:
        assert "continue with the same command and --output" in started.text()
    assert "Traceback" not in started.text()


@pytest.mark.slow
def test_a_run_that_fails_is_a_result_and_others_are_still_compared(compare, tmp_path) -> None:
    write_script(tmp_path, unused=True)
    started = compare("--strategies", "allreduce, asynchronous", "--workers", "2", "--repeats", "1")
    assert started.finish() == 1, started.text()
    failed, finished = read_results(tmp_path / "out").runs
    assert (failed.status, finished.status) == ("failed", "finished")
    assert "the loss does not depend on 2 parameters" in failed.words
    assert "failed: " in started.text()


def test_what_cannot_be_starts_nothing(compare, tmp_path: Path) -> None:
    write_script(tmp_path)
    mistakes = {
        "did you mean 'allreduce'": compare("--strategies", "allreduce, alreduce"),
        "the run has workers 0 to 1": compare("--slow", "7:2x", "--workers", "2"),
        "names no metric of this job": compare("--target", "f1 >= 0.5"),
    }
    for words, refused in mistakes.items():
        assert refused.finish() == 2, refused.text()
        assert words in refused.text()
        assert "Traceback" not in refused.text()
    assert not (tmp_path / "out").exists()


def test_options_that_make_no_sense_are_answered_with_the_fix() -> None:
    plain = {"repeats": 1, "margin": 0.05}
    script = Script(path=Path("script.py"), job="job")
    for options, words in [
        ({"bandwidth": "1gbit"}, "add --virtual"),
        ({"workers": "two"}, "workers must be numbers"),
        ({"workers": "0"}, "workers must be at least 1"),
        ({"strategies": " , "}, "expected at least 1 strategy"),
    ]:
        with pytest.raises(ValueError, match=words):
            design_of(None, script, plain | {"seed": 0} | options)
    assert read_numbers("4, 2,4") == (4, 2)


@pytest.mark.slow
def test_a_script_compares_its_own_job(start, tmp_path: Path) -> None:
    path = write_script(
        tmp_path,
        below='print(mh.compare(job, ["single"], repeats=1, samples=640, output="out").summary())',
    )
    started = start(sys.executable, path, "an argument")
    assert started.finish() == 0, started.text()
    assert started.text().count("single() ran alone") == 1
    (run,) = read_results(tmp_path / "out").runs
    assert (run.samples, run.seed) == (640, 5)


def planted(compare, tmp_path: Path, entrants: str, repeats: int, output: str = "out"):
    """Who is how fast, where most of the time is that of a device.

    So it depends little on what else this machine does, and what was planted can be found.
    """
    write_script(tmp_path, samples=2048, epochs=4, validates=False, device=0.03)
    started = compare(
        *("--strategies", entrants, "--workers", "1", "--repeats", str(repeats)), output=output
    )
    assert started.finish(600) == 0, started.text()
    found = verdict(read_results(tmp_path / output))
    assert found is not None
    return found.contests["speed"]


@pytest.mark.timed
def test_a_strategy_of_half_the_speed_is_found_slower_than_itself(compare, tmp_path) -> None:
    speed = planted(compare, tmp_path, "single, single slow all:2x", 2)
    assert speed.behind == ("single() slow all:2x",)


@pytest.mark.timed
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_strategy_slowed_by_a_fifth_is_slower_in_ten_of_ten(compare, tmp_path) -> None:
    """And two identical ones are never told apart."""
    answers = []
    for number in range(10):
        entrants = "allreduce, allreduce slow all:1.2x, allreduce"
        speed = planted(compare, tmp_path, entrants, 4, f"out-{number}")
        answers.append(speed.behind)
    assert answers == [("allreduce() slow all:1.2x",)] * 10


@pytest.mark.slow
def test_scaling_is_a_table_to_be_copied(start, tmp_path: Path) -> None:
    write_script(tmp_path)
    started = start(
        *(sys.executable, "-m", "manyhands", "scaling", "script.py", "--output", "out"),
        *("--workers", "1,2", "--repeats", "1", "--strategy", "allreduce"),
    )
    assert started.finish() == 0, started.text()
    text = started.text()
    assert "| workers | samples/s | speedup | efficiency |" in text
    assert "| 1 |" in text
    assert "| 1.00 | 100 % |" in text
    assert "| 2 |" in text
    assert "speedup over 1 worker" in text
    assert (tmp_path / "out" / "report.html").exists()
    assert [run.workers for run in read_results(tmp_path / "out").runs] == [1, 2]
