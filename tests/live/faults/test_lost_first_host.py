"""The first host is lost, stopped or cut off: the others continue the run, or nobody does."""

import signal
import subprocess

import pytest
import torch
from several_hosts import BATCH, MANYHANDS, begun, kill

from manyhands.lab.networks.namespaces import NotPermitted, check_permitted, network
from manyhands.reports import Run
from support import wait_for

SAMPLES = BATCH * 1000
CHECKPOINT = ("--samples", str(SAMPLES), "--checkpoint", "50 steps")


def wait_for_checkpoint(tmp_path, first):
    stored = tmp_path / "run" / "checkpoints"
    wait_for(lambda: any(stored.glob("[0-9]*")), 90, f"a checkpoint: {first.text()}")


def check_against_one_worker(start, tmp_path):
    """Every sample counts once, and the parameters are those of one worker, in float32."""
    alone = start(
        *(*MANYHANDS, "train", "job.py", "--strategy", "single()", "--workers", "1"),
        *("--samples", str(SAMPLES), "--output", "alone"),
    )
    assert alone.finish(100) == 0, alone.text()
    run = Run(tmp_path / "run")
    assert run.samples == SAMPLES
    ours, its = run.state_dict(), Run(tmp_path / "alone").state_dict()
    assert all(torch.allclose(ours[name], its[name], atol=1e-4) for name in its)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("strategy", ["synchronous()", "allreduce()", "fully_sharded()"])
def test_the_hosts_that_remain_continue_from_the_last_checkpoint(start, tmp_path, strategy):
    first, lines = begun(start, tmp_path, strategy, "a:1, b:1, c:1", options=CHECKPOINT)
    second, third = (start(*MANYHANDS, *line) for line in lines)
    wait_for_checkpoint(tmp_path, first)
    kill(first)
    assert second.finish(200) == 0, second.text() + third.text()
    assert third.finish(60) == 0, second.text() + third.text()
    assert "this host takes its place" in second.text()
    assert "with 2 workers (b:1, c:1)" in second.text()
    assert "b continues the run; this host joins it" in third.text()
    assert "continues from" in second.text(), second.text()
    check_against_one_worker(start, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_first_host_that_was_stopped_ends_when_it_goes_on(start, tmp_path):
    first, (line,) = begun(start, tmp_path, "synchronous()", options=CHECKPOINT)
    second = start(*MANYHANDS, *line)
    wait_for_checkpoint(tmp_path, first)
    stopped = (first.process, *first.tree())
    for process in stopped:
        process.send_signal(signal.SIGSTOP)
    wait_for(lambda: "%)" in second.text().partition("takes its place")[2], 120, "the new run")
    for process in stopped:
        process.send_signal(signal.SIGCONT)
    assert first.finish(60) == 1, first.text()
    assert "b took its place: the run continues there" in first.text()
    assert second.finish(200) == 0, second.text()
    check_against_one_worker(start, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_nobody_takes_over_from_a_first_host_that_is_cut_off(start, tmp_path):
    try:
        check_permitted()
    except NotPermitted as error:
        pytest.skip(str(error))
    with network(2, 125e6) as hosts:
        here, there = hosts
        place = {"listen": here.address, "inside": here.inside()}
        first, (line,) = begun(start, tmp_path, "synchronous()", options=CHECKPOINT, **place)
        second = start(*there.inside(*MANYHANDS, *line))
        wait_for_checkpoint(tmp_path, first)
        subprocess.run(there.inside("ip", "link", "set", "eth0", "down"), check=True)
        assert second.finish(60) == 1, second.text()
        assert "it is cut off, not lost" in second.text()
        assert first.finish(200) == 0, first.text()
        assert Run(tmp_path / "run").samples == SAMPLES


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_without_a_checkpoint_the_reason_is_given(start, tmp_path):
    first, (line,) = begun(
        start, tmp_path, "synchronous()", options=("--checkpoint", "1000 epochs")
    )
    second = start(*MANYHANDS, *line)
    wait_for(lambda: " %)" in first.text(), 90, "training")
    kill(first)
    assert second.finish(60) == 1, second.text()
    assert "the run cannot continue by itself: there is no checkpoint in" in second.text()


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_run_that_is_going_on_is_not_continued_a_second_time(start, tmp_path):
    first, (line,) = begun(start, tmp_path, "synchronous()", options=CHECKPOINT)
    second = start(*MANYHANDS, *line)
    wait_for_checkpoint(tmp_path, first)
    again = start(*MANYHANDS, "train", "job.py", "--resume", "run", "--output", "run")
    assert again.finish(60) == 2
    assert "the run in run is still going on" in again.text()
    assert first.finish(200) == 0, first.text()
    assert second.finish(60) == 0, second.text()
