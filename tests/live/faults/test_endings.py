"""Every way a run can end leaves words behind, and nothing else."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from support import wait_for

JOB = """
    import os, sys, time
    import torch, torch.nn.functional as F
    import manyhands as mh

    data = torch.utils.data.TensorDataset(torch.randn(4096, 20), torch.randint(0, 5, (4096,)))

    def loss(outputs, targets):
        time.sleep(0.01)
        return F.cross_entropy(outputs, targets)

    job = mh.Job(
        model=lambda: torch.nn.Linear(20, 5),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.01),
        loss=loss,
        data=data,
        global_batch=64,
        epochs=1000,
    )

    if __name__ == "__main__":
        print(mh.train(job, "allreduce()", workers=4, output="run").summary())
"""

FAILING = """
    import torch, torch.nn.functional as F
    import manyhands as mh

    def loop(trainer):
        for batch in trainer.batches():
            trainer.step(batch)
            if trainer.rank == 2 and batch.step == 5:
                raise ValueError("boom on purpose")

    job = mh.Job(
        model=lambda: torch.nn.Linear(20, 5),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.01),
        loss=F.cross_entropy,
        data=torch.utils.data.TensorDataset(torch.randn(512, 20), torch.randint(0, 5, (512,))),
        global_batch=64,
        epochs=1000,
    )

    if __name__ == "__main__":
        mh.train(job, "allreduce()", workers=4, loop=loop, output="run")
"""


def is_training(started) -> bool:
    """Whether the first worker's trace has reached the coordinator's file with steps in it."""
    assert started.process.poll() is None, started.text()
    trace = started.folder / "run" / "trace" / "worker-0.jsonl"
    return trace.exists() and '["span","compute"' in trace.read_text(encoding="utf-8")


def all_gone(started) -> bool:
    return started.process.poll() is not None and not started.tree()


def left_behind(folder: Path) -> list[str]:
    """Private folders and sockets of ours, and shared memory that anybody made since."""
    return [str(path) for path in folder.glob("manyhands-*")]


@pytest.fixture
def shared_memory():
    before = set(Path("/dev/shm").iterdir())  # noqa: S108 - to see that nothing is left there
    yield
    assert set(Path("/dev/shm").iterdir()) - before == set()  # noqa: S108


def training(run_script, text=JOB):
    started = run_script(text)
    wait_for(lambda: is_training(started), 60, "training")
    assert started.tree()
    return started


def test_exception_in_user_code_ends_the_run_with_that_traceback_last(run_script, shared_memory):
    started = run_script(FAILING)
    assert started.finish(60) != 0
    seconds = wait_for(lambda: not started.tree(), 5, "everything gone")
    assert seconds < 5
    text = started.text()
    assert text.rstrip().endswith("ValueError: boom on purpose")
    assert "worker 2 on " in text
    assert "script.py" in text.split("worker 2 on ")[1]
    assert left_behind(started.folder) == []


@pytest.mark.slow
def test_a_worker_that_leaves_without_a_traceback_is_told_with_its_last_lines(run_script):
    leaves = 'import os, sys; print("the last line", file=sys.stderr); os._exit(7)'
    started = run_script(FAILING.replace('raise ValueError("boom on purpose")', leaves))
    assert started.finish(60) != 0
    assert "worker 2 on " in started.text()
    assert "exited with code 7 and no traceback" in started.text()
    assert started.text().rstrip().endswith("the last line")


@pytest.mark.slow
def test_it_takes_less_than_5_seconds_from_the_exception_to_the_end(run_script):
    started = run_script(FAILING)
    error = started.folder / "run" / "logs" / "worker-2.error.json"
    wait_for(error.exists, 60, "the failure")
    wait_for(lambda: all_gone(started), 5, "everything gone after the exception")


def test_killed_worker_is_named(run_script, shared_memory):
    # Its part of the optimizer's state is lost with it, so the run ends.
    started = training(run_script, JOB.replace("allreduce()", "zero(stage=1)"))
    started.worker(3).kill()
    assert started.finish(10) != 0
    wait_for(lambda: all_gone(started), 10, "everything gone")
    assert "worker 3 on " in started.text()
    assert "was killed (SIGKILL), probably out of memory" in started.text()
    assert left_behind(started.folder) == []


def samples_told(started) -> int:
    """Samples in the latest progress line."""
    counts = re.findall(r"^([\d,]+) of [\d,]+ samples", started.text(), re.MULTILINE)
    return int(counts[-1].replace(",", "")) if counts else 0


@pytest.mark.slow
def test_killed_coordinator_is_restarted_and_the_run_goes_on(run_script, interrupt, shared_memory):
    started = training(run_script)
    first = started.coordinator()
    first.kill()
    wait_for(lambda: "coordinator restarted" in started.text(), 10, "words")
    wait_for(lambda: started.coordinator() not in (None, first), 10, "another coordinator")
    assert "coordinator on " in started.text()
    assert "was killed (SIGKILL)" in started.text()
    before = samples_told(started)
    wait_for(lambda: samples_told(started) > before, 30, "more samples")
    interrupt(started)
    assert started.finish(10) != 0
    wait_for(lambda: all_gone(started), 10, "everything gone")
    assert left_behind(started.folder) == []


def test_killed_fork_server_is_replaced_and_the_run_goes_on(run_script, interrupt, shared_memory):
    started = training(run_script)
    first = started.fork_server()
    first.kill()
    wait_for(lambda: "a new fork server is started" in started.text(), 10, "words")
    wait_for(lambda: started.fork_server() not in (None, first), 10, "another fork server")
    assert "fork server on " in started.text()
    assert "was killed (SIGKILL)" in started.text()
    before = samples_told(started)
    wait_for(lambda: samples_told(started) > before, 30, "more samples")
    interrupt(started)
    assert started.finish(10) != 0
    wait_for(lambda: all_gone(started), 10, "everything gone")
    assert left_behind(started.folder) == []


def loading(run_script):
    """A run whose fork server is still loading torch."""
    started = run_script(JOB)
    wait_for(started.fork_server, 60, "a fork server")
    assert started.worker(0) is None
    return started


@pytest.mark.slow
def test_a_fork_server_killed_while_it_loads_is_replaced(run_script):
    started = loading(run_script)
    started.fork_server().kill()
    wait_for(lambda: is_training(started), 60, "training")


def test_an_agent_killed_while_the_fork_server_loads_leaves_no_process(run_script):
    started = loading(run_script)
    os.kill(started.process.pid, signal.SIGKILL)
    started.process.wait()
    wait_for(lambda: not started.tree(), 10, "no orphan")


def test_ctrl_c_while_the_fork_server_loads_ends_everything(run_script, interrupt):
    started = loading(run_script)
    wait_for(started.coordinator, 30, "a coordinator")
    interrupt(started)
    assert started.finish(10) != 0
    wait_for(lambda: all_gone(started), 5, "everything gone")
    assert started.text().rstrip().endswith("KeyboardInterrupt")
    assert left_behind(started.folder) == []


def test_killed_agent_takes_everything_with_it_and_the_coordinator_says_so(
    run_script, shared_memory
):
    started = training(run_script)
    started.tree()
    os.kill(started.process.pid, signal.SIGKILL)
    started.process.wait()
    wait_for(lambda: not started.tree(), 10, "no orphan")
    assert f"the agent (pid {started.process.pid}) was killed" in started.text()
    assert left_behind(started.folder) == []
    assert not any(
        connection.status == psutil.CONN_LISTEN and connection.pid in started.seen
        for connection in psutil.net_connections("tcp")
    )


def test_ctrl_c_ends_everything(run_script, interrupt, shared_memory):
    started = training(run_script)
    interrupt(started)
    assert started.finish(10) != 0
    wait_for(lambda: all_gone(started), 5, "everything gone")
    assert started.text().rstrip().endswith("KeyboardInterrupt")
    assert left_behind(started.folder) == []


def test_a_schedulers_sigterm_ends_everything(run_script, shared_memory):
    started = training(run_script)
    os.kill(started.process.pid, signal.SIGTERM)
    assert started.finish(10) == 128 + signal.SIGTERM
    wait_for(lambda: all_gone(started), 5, "everything gone")
    assert left_behind(started.folder) == []


@pytest.mark.slow
def test_stopped_worker_is_named_with_host_rank_and_line_within_30_seconds(run_script):
    started = training(run_script)
    started.worker(1).suspend()
    begun = time.monotonic()
    wait_for(lambda: "worker 1 on " in started.text(), 30, "the culprit's name")
    print(f"named after {time.monotonic() - begun:.1f} s")
    line = next(line for line in started.text().splitlines() if "worker 1 on " in line)
    assert f"worker 1 on {os.uname().nodename}" in line
    assert ".py:" in line, "the line of code"
    with contextlib.suppress(psutil.NoSuchProcess):
        started.worker(1).resume()
    wait_for(lambda: "worker 1 on" in started.text().split(line)[1], 20, "the word that it is back")
    assert "is back" in started.text()


def test_a_worker_that_sleeps_in_user_code_is_named_with_that_line(run_script):
    text = FAILING.replace(
        'raise ValueError("boom on purpose")', "import time; time.sleep(600)  # here"
    )
    started = run_script(text)
    wait_for(lambda: "has kept the others waiting" in started.text(), 60, "the culprit's name")
    waiting = "has kept the others waiting"
    line = next(line for line in started.text().splitlines() if waiting in line)
    sleeping = 1 + next(
        number
        for number, code in enumerate((started.folder / "script.py").read_text().splitlines())
        if "# here" in code
    )
    assert "worker 2 on " in line
    assert f"script.py:{sleeping} in loop" in line


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["allreduce()", "asynchronous()"])
@pytest.mark.parametrize("killed", [False, True])
def test_a_run_whose_folder_is_deleted_ends_with_its_model(run_script, strategy, killed):
    text = JOB.replace("allreduce()", strategy).replace("epochs=1000", "epochs=8")
    started = training(run_script, text)
    # The run makes parts of its folder again at once.
    shutil.rmtree(started.folder / "run", ignore_errors=True)
    if killed:
        started.worker(3).kill()
    assert started.finish(120) == 0, started.text()
    assert "Traceback" not in started.text()
    assert (started.folder / "run" / "model.safetensors").exists()
    assert ": finished" in started.text()


@pytest.fixture
def without_loopback():
    """A network namespace whose loopback interface is down."""
    name = f"lo-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"no network namespace can be made here: {made.stderr.decode().strip()}")
    yield ("ip", "netns", "exec", name)
    subprocess.run(["ip", "netns", "delete", name], check=True)


def test_a_host_without_loopback_is_refused_in_a_sentence(start, without_loopback, tmp_path):
    (tmp_path / "script.py").write_text(textwrap.dedent(JOB))
    started = start(*without_loopback, sys.executable, tmp_path / "script.py")
    assert started.finish(60) != 0
    last = started.text().rstrip().rpartition("\n")[2]
    assert "no connection to it is possible" in last, started.text()
    assert "ip link set lo up" in last
    assert "c10d" not in started.text()
    assert not (tmp_path / "run").exists(), "the same command may be given again"


@pytest.mark.slow
def test_a_pipeline_that_loses_a_worker_does_not_print_its_schedule(run_script):
    text = (
        JOB.replace("allreduce()", "pipeline()")
        .replace("workers=4", "workers=2")
        .replace(
            "torch.nn.Linear(20, 5)",
            "torch.nn.Sequential(torch.nn.Linear(20, 8), torch.nn.Tanh(), torch.nn.Linear(8, 5))",
        )
    )
    started = training(run_script, text)
    started.worker(1).kill()
    assert started.finish(60) != 0
    assert "worker 1 on " in started.text()
    logs = "".join(one.read_text() for one in (started.folder / "run" / "logs").iterdir())
    for printed in ("caught", "Full Schedule", "Step "):
        assert printed not in started.text() + logs, started.text() + logs
