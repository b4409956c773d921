"""Of many processes that end between two looks at them, the first to end is named."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from manyhands.live.processes.supervision import Process, first_failure
from support import wait_for

COUNT = 20


class Child:
    """A handle of a process that does nothing until it is killed."""

    def __init__(self) -> None:
        command = [sys.executable, "-S", "-c", "import signal; signal.pause()"]
        self._process = subprocess.Popen(command, start_new_session=True)
        self.pid = self._process.pid
        self.poll = self._process.poll

    def wait(self, timeout: float) -> None:
        self._process.wait(timeout)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def children():
    handles = [Child() for _ in range(COUNT)]
    yield handles
    for handle in handles:
        handle.close()


def is_zombie(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    return stat.rpartition(")")[2].split()[0] == "Z"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_first_of_many_that_were_killed_is_named(children, tmp_path, seed):
    processes = [
        Process(f"worker-{rank}", handle, tmp_path / f"{rank}.error.json", "here")
        for rank, handle in enumerate(children)
    ]
    order = random.Random(seed).sample(range(COUNT), COUNT)  # noqa: S311 - to draw an order
    for rank in order:
        os.kill(processes[rank].pid, signal.SIGKILL)
        wait_for(lambda rank=rank: is_zombie(processes[rank].pid), 10, "its end")
    exits = [process.poll() for process in processes]
    assert first_failure(exits).name == f"worker-{order[0]}"
    ended = sorted(exits, key=lambda exit_: exit_.at)
    assert [exit_.name for exit_ in ended] == [f"worker-{rank}" for rank in order]
