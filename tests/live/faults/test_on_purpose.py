"""Faults on purpose in live runs: they happen, are recorded and shown, and leave nothing behind."""

import subprocess
import sys
import textwrap

import psutil
import pytest

from manyhands.reports import Run
from manyhands.reports.figures.fault_times import fault_times
from manyhands.reports.figures.speed import accounting, training_seconds
from support import wait_for

MANYHANDS = (sys.executable, "-m", "manyhands")
SCRIPT = """
    import time
    import torch, torch.nn.functional as F
    import manyhands as mh

    def loss(outputs, targets):
        time.sleep(0.03)
        return F.cross_entropy(outputs, targets)

    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(6000, 4), torch.randint(0, 2, (6000,)))
    job = mh.Job(
        model=lambda: torch.nn.Linear(4, 2),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=loss,
        data=data,
        global_batch=30,
        epochs=1,
        metrics=(),
    )
"""
SAMPLES = 6000


@pytest.fixture
def train(start, tmp_path):
    """Start `manyhands train` with three workers, a strategy and faults."""

    def begin(strategy, faults, *options, workers=3):
        script = tmp_path / "job.py"
        script.write_text(textwrap.dedent(SCRIPT), encoding="utf-8")
        return start(
            *(*MANYHANDS, "train", script, "--strategy", strategy, "--workers", str(workers)),
            *("--faults", faults, "--output", "run", *options),
        )

    return begin


def spans_of(run, rank):
    lives = [process for process in run.trace.workers if process.header.rank == rank]
    return [span for life in lives for span in life.spans if span.kind == "compute"]


@pytest.mark.timeout(150)
def test_a_worker_is_killed_another_stopped_and_a_server_killed(train):
    started = train(
        "asynchronous()",
        "crash worker 2 at 0.5 s; stop worker 1 from 1 s to 3 s; crash server 0 at 1.5 s",
    )
    assert started.finish(120) == 0, started.text()
    run = Run(started.folder / "run")
    assert run.status == "finished"
    kept = accounting(run.trace)
    assert (run.samples, kept.lost) == (SAMPLES, 0), "every sample exactly once"
    killed, stopped, server = fault_times(run.trace)
    assert killed.words.startswith("worker 2 killed at ")
    assert killed.back is not None, started.text()
    assert server.words.startswith("server 0 killed at ")
    assert server.back is not None
    assert 1.8 < stopped.over - stopped.at < 4.0
    # The process really stood still: no step of it is within the stop.
    begin, _ = training_seconds(run.trace)
    within = [
        span
        for span in spans_of(run, 1)
        if stopped.at + 0.2 < span.start - begin < stopped.over - 0.4
    ]
    assert within == []
    text = started.text()
    assert "fault: worker 2 is killed at" in text
    assert "killed on purpose (--faults) at" in text
    assert "worker 2 has rejoined" in text
    assert "fault: worker 1 continues at" in text
    summary = " ".join(run.summary().split())
    assert "worker 2 killed at " in summary
    assert "faults [crash(worker=2, at=0.5, restart=1.0), " in summary
    picture = run.timeline(started.folder / "timeline.svg").read_text(encoding="utf-8")
    assert 'class="fault"' in picture


@pytest.mark.timeout(150)
def test_a_server_whose_state_has_numbers_as_keys_is_killed(train):
    # Far beyond the calls after which the first snapshot is written.
    started = train("ssp(staleness=4)", "crash server 0 at 2 s")
    assert started.finish(120) == 0, started.text()
    run = Run(started.folder / "run")
    assert (run.status, run.samples) == ("finished", SAMPLES)
    (server,) = fault_times(run.trace)
    assert server.back is not None


def is_stopped(process):
    try:
        return process.status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_worker_that_is_stopped_when_the_run_is_interrupted_is_not_left_behind(train, interrupt):
    started = train("asynchronous()", "stop worker 1 at 0.2 s")
    wait_for(lambda: "fault: worker 1 is stopped" in started.text(), 60, "the fault")
    worker = started.worker(1)
    wait_for(lambda: is_stopped(worker), 5, "its stop")
    interrupt(started)
    assert started.finish(20) == 130, started.text()
    wait_for(lambda: not started.tree(), 5, "everything gone")


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_worker_that_crashes_for_ever_stays_away(train):
    started = train("asynchronous()", "crash worker 2 at 0.5 s for ever")
    assert started.finish(120) == 0, started.text()
    run = Run(started.folder / "run")
    assert run.samples == SAMPLES
    assert "has rejoined" not in started.text()
    (killed,) = fault_times(run.trace)
    assert killed.words.endswith("not back")


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_crash_under_collectives_ends_the_run_in_words(train):
    started = train("allreduce()", "crash worker 1 at 0.5 s")
    assert started.finish(120) == 1
    assert "killed on purpose (--faults) at" in started.text()
    assert "fault: worker 1 is killed" in started.text()


@pytest.mark.timeout(60)
def test_a_fault_that_a_live_run_cannot_have_is_refused_before_anything_starts(train):
    started = train("asynchronous()", "cut host b from 1 s to 2 s")
    assert started.finish(50) == 2, started.text()
    assert "needs a network that Manyhands made: use --cluster" in started.text()
    assert not (started.folder / "run" / "trace").exists()


@pytest.mark.slow
@pytest.mark.timeout(100)
def test_refusals_of_texts_and_of_large_disks(train):
    for faults, words in (
        ("full disk at 1 s", "is not filled on purpose"),
        ("crash worker 7 at 1 s", "the run has 3 workers, numbered from 0"),
        ("explode", "expected"),
    ):
        started = train("asynchronous()", faults)
        assert started.finish(50) == 2, started.text()
        assert words in started.text()


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_full_disk_costs_no_sample(start, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)]
    done = subprocess.run(mounting, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    try:
        script = tmp_path / "job.py"
        script.write_text(textwrap.dedent(SCRIPT), encoding="utf-8")
        started = start(
            *(*MANYHANDS, "train", script, "--strategy", "asynchronous()", "--workers", "2"),
            *("--faults", "full disk from 1 s to 3 s", "--output", disk / "run"),
        )
        assert started.finish(120) == 0, started.text()
        assert "cannot be written: No space left" in started.text()
        assert "the disk has space again" in started.text()
        assert Run(disk / "run").samples == SAMPLES
        assert not (disk / "run" / "full-disk.tmp").exists()
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_faults_of_other_hosts_are_carried_out_by_their_agents(start, tmp_path):
    script = tmp_path / "job.py"
    script.write_text(textwrap.dedent(SCRIPT), encoding="utf-8")
    started = start(
        *(*MANYHANDS, "train", script, "--strategy", "asynchronous()"),
        *("--cluster", "2 hosts of 1 workers, 1gbit", "--output", "run"),
        *("--faults", "stop worker 1 from 1 s to 3 s; stop worker 0 from 4 s to 5 s"),
    )
    code = started.finish(200)
    if "cannot be used here" in started.text():
        pytest.skip(started.text())
    assert code == 0, started.text()
    run = Run(tmp_path / "run")
    assert run.samples == SAMPLES
    agents = {
        process.header.host: [event.what for event in process.events]
        for process in run.trace.processes
        if process.header.role == "agent"
    }
    assert [events.count("fault") for events in agents.values()] == [1, 1], agents
    assert [events.count("fault over") for events in agents.values()] == [1, 1], agents


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_random_faults_cost_no_sample(train):
    started = train("asynchronous(servers=2)", "random(every=2s, seed=5)", "--samples", "15000")
    assert started.finish(250) == 0, started.text()
    run = Run(started.folder / "run")
    assert run.samples == 15_000
    assert accounting(run.trace).lost == 0
    assert len(fault_times(run.trace)) >= 5
    assert not [pid for pid in psutil.pids() if _is_stopped_child(pid, started)]


def _is_stopped_child(pid, started):
    return pid in started.seen and is_stopped(started.seen[pid])
