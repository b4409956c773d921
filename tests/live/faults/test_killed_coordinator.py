"""The coordinator is killed: workers and servers carry on, and nothing is lost or doubled."""

import contextlib
import random
import shlex
import signal
import sys
import textwrap
import time

import psutil
import pytest

from manyhands.reports import Run
from support import wait_for

COUNTER = '''
    import os, sys, time
    import torch
    import manyhands as mh

    def note_batch():
        """A byte for every batch of this process."""
        with open(f"batches-{os.getpid()}", "ab", buffering=0) as file:
            file.write(b".")

    class Counter(torch.nn.Module):
        """Whole numbers in float64: their sum is exact, so a lost or doubled update shows."""

        def __init__(self):
            super().__init__()
            self.count = torch.nn.Parameter(torch.zeros(1000, dtype=torch.float64))

        def forward(self, x):
            return -(self.count * 1.0).sum() * x.mean()

    def loss(outputs, targets):
        note_batch()
        time.sleep(0.005)
        return outputs

    job = mh.Job(
        model=Counter,
        # Four samples in a global batch: whoever computes how many of them, each adds exactly 1.
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=4.0),
        loss=loss,
        data=torch.utils.data.TensorDataset(
            torch.ones(100_000, dtype=torch.float64), torch.zeros(100_000)
        ),
        global_batch=4,
        samples=int(sys.argv[2]),
        metrics=(),
    )

    if __name__ == "__main__":
        run = mh.train(job, sys.argv[1], workers=4, output="run")
        counts = run.state_dict()["count"]
        print(run.summary())
        print("COUNTS", counts.min().item(), counts.max().item())
'''
LONGEST = 5.0
"""Seconds in which a run must go on after its coordinator was killed."""


def has_begun(started) -> bool:
    assert started.process.poll() is None, started.text()
    trace = started.folder / "run" / "trace" / "worker-0.jsonl"
    return trace.exists() and '["span","compute"' in trace.read_text(encoding="utf-8")


def kill(started, module, *arguments) -> bool:
    """Kill a process of the run; whether it was there."""
    found = started.named(module, *arguments)
    with contextlib.suppress(psutil.NoSuchProcess):
        if found is not None:
            found.kill()
            return True
    return False


def workers_of(started) -> list[psutil.Process | None]:
    return [started.worker(rank) for rank in range(4)]


def batches(started, workers) -> list[int]:
    """Batches that each worker has computed."""
    return [(started.folder / f"batches-{worker.pid}").stat().st_size for worker in workers]


def time_to_go_on(started, workers) -> float:
    """Seconds until every worker has computed batches that it was not given before."""
    before = batches(started, workers)

    def has_gone_on() -> bool:
        # A worker asks for its next samples while it computes, so it may have two leases.
        both = zip(before, batches(started, workers), strict=True)
        return all(now >= count + 3 for count, now in both)

    return wait_for(lambda: has_gone_on() or started.process.poll() is not None, 60, "more batches")


def count_under(run_script, strategy, samples, kills, seed, servers=0) -> float:
    """Kill the coordinator at seeded moments, and a server with it if there are any.

    Returns:
        The most seconds until all workers went on.
    """
    started = run_script(COUNTER, strategy, str(samples), name=f"count{seed}.py")
    wait_for(lambda: has_begun(started), 90, "training")
    workers = workers_of(started)
    draw, seconds = random.Random(seed), list[float]()  # noqa: S311 - the same moments every time
    while len(seconds) < kills:
        time.sleep(draw.uniform(0.0, 0.5))
        assert started.process.poll() is None, f"{len(seconds)} kills; {started.text()}"
        together = servers and draw.random() < 0.7
        if together:
            kill(started, "manyhands.live.server.process", str(len(seconds) % servers))
            time.sleep(draw.choice((0.0, 0.0, 0.02, 0.2)))
        wait_for(lambda: kill(started, "manyhands.live.coordinator.process"), 10, "a coordinator")
        if servers and not together:
            time.sleep(draw.choice((0.0, 0.02, 0.2, 0.6)))
            kill(started, "manyhands.live.server.process", str(len(seconds) % servers))
        seconds.append(time_to_go_on(started, workers))
        assert workers_of(started) == workers, "no worker was restarted"
    assert started.finish(170) == 0, started.text()
    text, run = started.text(), Run(started.folder / "run")
    assert f"COUNTS {samples}.0 {samples}.0" in text, text
    assert text.count("coordinator restarted") == kills
    assert run.status == "finished"
    assert run.samples == samples
    assert len(run.trace.workers) == 4, "no worker was restarted"
    spread = f"{min(seconds):.2f} to {max(seconds):.2f} s until all workers went on"
    print(f"{kills} kills under {strategy}: {spread}")
    return max(seconds)


@pytest.mark.timeout(240)
def test_every_update_counts_once_when_the_coordinator_is_killed(run_script):
    seconds = count_under(run_script, "asynchronous(servers=2)", samples=2400, kills=1, seed=1)
    assert seconds < 4 * LONGEST, "even on a busy machine"


@pytest.mark.timeout(240)
def test_collectives_carry_on_without_the_coordinator(run_script):
    seconds = count_under(run_script, "allreduce()", samples=2400, kills=1, seed=2)
    assert seconds < 4 * LONGEST, "even on a busy machine"


@pytest.mark.slow
@pytest.mark.timed
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "strategy",
    ["asynchronous(servers=2)", "ssp(staleness=2)", "synchronous()", "allreduce()"],
)
def test_ten_seeded_kills_of_the_coordinator(run_script, strategy, seed):
    seconds = count_under(run_script, strategy, samples=20_000, kills=10, seed=100 + seed)
    assert seconds <= LONGEST


@pytest.mark.slow
@pytest.mark.timed
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", range(10))
def test_ten_seeded_kills_of_a_server_and_the_coordinator_together(run_script, seed):
    about = (run_script, "asynchronous(servers=2)", 20_000)
    assert count_under(*about, kills=10, seed=200 + seed, servers=2) <= LONGEST


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_worker_and_the_coordinator_killed_together_are_both_replaced(run_script):
    started = run_script(COUNTER, "asynchronous()", "8000")
    wait_for(lambda: has_begun(started), 90, "training")
    started.worker(3).kill()
    started.coordinator().kill()
    wait_for(lambda: "worker 3 has rejoined" in started.text(), 60, "the worker's successor")
    assert started.finish(170) == 0, started.text()
    count = float(started.text().split("COUNTS ")[1].split()[0])
    assert 8000 <= count <= 8000 + 2, "what the killed worker held counts once or twice"
    assert Run(started.folder / "run").samples == 8000


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_coordinator_killed_while_workers_start_is_replaced(run_script):
    started = run_script(COUNTER, "asynchronous()", "2000")
    for number in range(1, 4):
        wait_for(started.coordinator, 60, "a coordinator")
        wait_for(lambda: kill(started, "manyhands.live.coordinator.process"), 10, "a kill")
        log = started.folder / "run" / "logs" / f"coordinator.{number}.err"
        wait_for(log.exists, 30, "its successor")
    assert started.finish(200) == 0, started.text()
    assert "COUNTS 2000.0 2000.0" in started.text()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_other_hosts_carry_on_and_an_agent_that_dies_ends_its_host_only(start, tmp_path):
    script = tmp_path / "job.py"
    text = COUNTER.replace("int(sys.argv[2])", "12_000").split("if __name__")[0]
    script.write_text(textwrap.dedent(text))
    manyhands = (sys.executable, "-m", "manyhands")
    first = start(
        *(*manyhands, "train", script, "--strategy", "asynchronous()", "--hosts", "a:2, b:2"),
        *("--listen", "127.0.0.1", "--output", "run"),
    )
    joining = tmp_path / "run" / "join"
    wait_for(joining.exists, 60, "the command that joins")
    second = start(*manyhands, *shlex.split(joining.read_text())[1:])
    wait_for(lambda: " %)" in first.text(), 90, "training")
    here, there = first.named("manyhands.live.worker.process", "0"), second.tree()
    kill(first, "manyhands.live.coordinator.process")
    wait_for(lambda: "coordinator restarted" in first.text(), 10, "its successor")
    time.sleep(12)  # Longer than another host waits for the first one.
    assert second.process.poll() is None, second.text()
    assert {one.pid for one in there} <= {one.pid for one in second.tree()}, "none was restarted"
    second.process.send_signal(signal.SIGKILL)
    wait_for(lambda: not second.tree(), 10, "the end of the second host's processes")
    wait_for(lambda: "the other workers continue" in first.text(), 60, "the loss is noticed")
    assert here.is_running()
    assert first.finish(200) == 0, first.text()
    assert Run(tmp_path / "run").samples == 12_000


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_workers_in_lockstep_are_replaced_after_the_coordinator_was(run_script):
    """The successor of a coordinator knows which group the workers have."""
    started = run_script(COUNTER, "allreduce()", "16000")
    wait_for(lambda: has_begun(started), 90, "training")
    for rank in (1, 2):
        assert kill(started, "manyhands.live.worker.process", str(rank))
        back = f"worker {rank}"
        wait_for(
            lambda rank=rank, started=started: (
                started.worker(rank) is not None and started.process.poll() is None
            ),
            60,
            back,
        )
        time.sleep(2.0)
        wait_for(lambda: kill(started, "manyhands.live.coordinator.process"), 10, "a coordinator")
        time.sleep(1.0)
    assert started.finish(200) == 0, started.text()
    assert "COUNTS 16000.0 16000.0" in started.text(), started.text()
    assert started.text().count("coordinator restarted") == 2
