"""Processes that are killed while they start: the run starts them again, or ends at once."""

import os
import random
import threading
import time
from pathlib import Path

import psutil
import pytest

from manyhands.live.processes.fork_server import ForkServer, environment
from manyhands.live.processes.supervision import Start
from manyhands.reports import Run
from support import wait_for

SCRIPT = """
    import os, sys, time
    import torch, torch.nn.functional as F
    import manyhands as mh

    def build():
        if "manyhands.live.server.process" in sys.orig_argv:
            open("building", "w").close()
            while not os.path.exists("go"):
                time.sleep(0.01)
        return torch.nn.Linear(4, 2)

    torch.manual_seed(0)
    job = mh.Job(
        model=build,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=F.cross_entropy,
        data=torch.utils.data.TensorDataset(torch.randn(960, 4), torch.randint(0, 2, (960,))),
        global_batch=12,
        epochs=1,
        metrics=(),
    )

    if __name__ == "__main__":
        mh.train(job, sys.argv[1], workers=3, output="run")
"""


def held_at_start(name: str, started):
    """A forked process that cannot report itself yet: opening its log waits for a reader."""
    logs = started.folder / "run" / "logs"
    wait_for(logs.is_dir, 60, "the run's folder")
    os.mkfifo(logs / f"{name}.out")
    role, number = name.split("-")
    module = f"manyhands.live.{role}.process"
    wait_for(lambda: started.named(module, number), 60, name)
    return started.named(module, number)


def kill_forked(started, name: str) -> None:
    """Kill a process between its fork and its report; its successor opens another file."""
    held_at_start(name, started).kill()
    wait_for(lambda: f"{name.replace('-', ' ')} on " in started.text(), 20, "its name")


def kill_before_all_have_joined(started, rank: int, behind: int) -> None:
    """Kill a worker that has joined, while another one cannot join yet."""
    held = held_at_start(f"worker-{behind}", started)
    trace = started.folder / "run" / "trace" / f"worker-{rank}.jsonl"
    wait_for(trace.exists, 30, "the first heartbeat")
    started.worker(rank).kill()
    with (started.folder / "run" / "logs" / f"worker-{behind}.out").open("rb"):
        wait_for(lambda: held.num_threads() > 1, 30, "the other worker")
        wait_for(lambda: f"worker {rank} on " in started.text(), 20, "its name")


def finished(started) -> None:
    begun = time.monotonic()
    assert started.finish(60) == 0, started.text()
    assert time.monotonic() - begun < 40, started.text()
    run = Run(started.folder / "run")
    assert run.status == "finished"
    assert run.samples == 960


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param("gossip()", marks=pytest.mark.slow),
        pytest.param("hogwild()", marks=pytest.mark.slow),
        "synchronous()",
        pytest.param("allreduce()", marks=pytest.mark.slow),
    ],
)
def test_a_worker_killed_before_it_reported_itself_is_started_again(run_script, strategy):
    started = run_script(SCRIPT, strategy)
    (started.folder / "go").touch()
    kill_forked(started, "worker-2")
    finished(started)
    assert "before all workers had joined; it is restarted" in started.text()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["gossip()", "synchronous()", "allreduce()"])
def test_a_worker_killed_before_all_have_joined_does_not_hold_up_the_run(run_script, strategy):
    started = run_script(SCRIPT, strategy)
    (started.folder / "go").touch()
    # The agent is busy forking the last worker, so the coordinator may be notified of the loss only
    # when all have joined: then the other workers continue, or it joins again.
    kill_before_all_have_joined(started, 0, behind=2)
    finished(started)


def test_a_server_killed_while_it_starts_and_while_it_builds_its_model(run_script):
    started = run_script(SCRIPT, "asynchronous()")
    kill_forked(started, "server-0")
    wait_for((started.folder / "building").exists, 30, "a server that builds its model")
    started.named("manyhands.live.server.process", "0").kill()
    (started.folder / "go").touch()
    finished(started)
    assert started.text().count("server 0 on ") == 2


@pytest.mark.slow
def test_a_worker_killed_at_its_start_under_zero_ends_the_run_at_once(run_script):
    started = run_script(SCRIPT, "zero(stage=1)")
    kill_forked(started, "worker-2")
    begun = time.monotonic()
    assert started.finish(30) != 0
    assert time.monotonic() - begun < 10
    assert "worker 2 on " in started.text()
    assert "was killed (SIGKILL)" in started.text()
    wait_for(lambda: not started.tree(), 10, "everything gone")


def test_a_forked_process_that_is_killed_is_handed_over_with_its_exit_code(tmp_path: Path):
    fork_server = ForkServer(environment(1, 1))
    try:
        wait_for(lambda: fork_server.is_ready(0.1), 60, "the fork server")
        os.mkfifo(tmp_path / "first.out")
        handles = []

        def fork(stem: str) -> None:
            start = Start("manyhands.live.worker.process", ("none", "7"), str(tmp_path / stem), {})
            handles.append(fork_server.fork(start))

        forking = threading.Thread(target=fork, args=("first",))
        forking.start()

        def forked() -> list[psutil.Process]:
            children = psutil.Process().children()
            return [
                child for child in children if "manyhands.live.worker.process" in child.cmdline()
            ]

        wait_for(forked, 20, "the forked process")
        forked()[0].kill()
        forking.join(20)
        assert not forking.is_alive(), (
            "the fork server said nothing of a forked process that was killed"
        )
        wait_for(lambda: handles[0].poll() is not None, 5, "its end")
        assert handles[0].poll() == -9
        fork("second")
        handles[1].wait(30)
        assert handles[1].poll() == 1, "there is no assignment for it"
    finally:
        fork_server.close()
    assert not psutil.Process().children()


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "strategy", ["asynchronous()", "synchronous()", "gossip()", "hogwild()", "allreduce()"]
)
def test_whatever_is_killed_at_whatever_moment_of_the_start(run_script, strategy, seed):
    draw = random.Random(f"{strategy} {seed}")  # noqa: S311 - the same moments every time
    started = run_script(SCRIPT, strategy)
    (started.folder / "go").touch()
    victims = [("worker", "0"), ("worker", "1"), ("worker", "2"), ("coordinator",)]
    victims += [("server", "0")] if strategy in ("asynchronous()", "synchronous()") else []
    role, *number = draw.choice(victims)
    wait_for(lambda: started.named(f"manyhands.live.{role}.process", *number), 60, role)
    time.sleep(draw.choice((0.0, 0.0, draw.uniform(0, 0.2), draw.uniform(0, 2))))
    victim = started.named(f"manyhands.live.{role}.process", *number)
    if victim is None:
        pytest.skip(f"the {role} had done its work by then")
    victim.kill()
    code = started.finish(60)
    wait_for(lambda: not started.tree(), 10, "everything gone")
    who = " ".join((role, *number))
    if role == "coordinator":
        # A run that was over by then needs no words.
        assert code == 0 or f"{who} on " in started.text(), started.text()
    else:
        assert code == 0, started.text()
        assert Run(started.folder / "run").samples == 960
