"""Wall clocks that are an hour apart, or jump, under libfaketime: they have no effect."""

import os
import shlex
import textwrap
from pathlib import Path

import pytest
from several_hosts import JOB, MANYHANDS

from manyhands.reports import Run
from manyhands.reports.figures.speed import accounting, training_seconds
from support import wait_for

PLACES = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib*/faketime/libfaketimeMT.so.1")


@pytest.fixture
def clock(tmp_path):
    """Environment of a process whose wall clock is as far off as the file says: "+3600"."""
    found = [path for place in PLACES for path in Path("/").glob(place.lstrip("/"))]
    if not found:
        pytest.skip("libfaketime is not installed: apt-get install faketime")

    # libfaketime 0.9.10 lets `time.sleep` fail when it does not fake the monotonic clock.
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "import threading, time\ntime.sleep = lambda seconds: threading.Event().wait(seconds)\n",
        encoding="ascii",
    )
    paths = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))

    def made(name, offset):
        file = tmp_path / name
        file.write_text(offset, encoding="ascii")
        settings = {
            "LD_PRELOAD": str(found[0]),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_DONT_RESET": "1",
            "PYTHONPATH": paths,
        }
        return file, settings

    return made


def joined(start, tmp_path, strategy, here, there):
    """A run on two hosts, each with its own wall clock."""
    script = tmp_path / "job.py"
    script.write_text(textwrap.dedent(JOB), encoding="utf-8")
    first = start(
        *(*MANYHANDS, "train", script, "--strategy", strategy, "--hosts", "a:1, b:1"),
        *("--listen", "127.0.0.1", "--output", "run", "--epochs", "5"),
        **here,
    )
    line = tmp_path / "run" / "join"
    wait_for(lambda: line.exists() or first.process.poll() is not None, 60, "the line to join by")
    second = start(*MANYHANDS, *shlex.split(line.read_text())[1:], **there)
    return first, second


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("strategy", ["asynchronous()", "synchronous()", "allreduce()"])
def test_hosts_whose_clocks_are_an_hour_apart_train_as_ever(start, tmp_path, clock, strategy):
    _, later = clock("later", "+3600")
    _, earlier = clock("earlier", "-3600")
    first, second = joined(start, tmp_path, strategy, later, earlier)
    assert first.finish(150) == 0, first.text() + second.text()
    assert second.finish(30) == 0, second.text()
    run = Run(tmp_path / "run")
    assert run.samples == 5 * 2048
    walls = [process.header.wall for process in run.trace.processes]
    assert max(walls) - min(walls) > 7000, "the clocks are apart"
    begin, end = training_seconds(run.trace)
    assert 0 <= begin < end < 150, "traces are on one clock all the same"


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("strategy", ["asynchronous()", "synchronous()", "allreduce()"])
def test_a_clock_that_jumps_during_the_run_has_no_effect(start, tmp_path, clock, strategy):
    file, jumping = clock("jumping", "+0")
    first, second = joined(start, tmp_path, strategy, jumping, {})
    wait_for(lambda: " %)" in first.text(), 90, "training")
    trace = tmp_path / "run" / "trace" / "worker-0.jsonl"
    wait_for(trace.exists, 20, "a trace")
    for offset in ("+3600", "-3600", "+0"):
        file.write_text(offset, encoding="ascii")
        before = trace.stat().st_size
        wait_for(
            lambda: trace.stat().st_size > before or first.process.poll() is not None,  # noqa: B023
            60,
            "progress",
        )
    assert first.finish(150) == 0, first.text() + second.text()
    run = Run(tmp_path / "run")
    assert run.samples == 5 * 2048
    assert "no heartbeat" not in first.text().split(" %)", 1)[1], "since training began"
    if strategy != "allreduce()":
        assert accounting(run.trace).repeated == 0
