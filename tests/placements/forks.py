"""Workers as forks of the test: real processes and sockets, without an agent."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from manyhands.files.checkpoint import read_tensors, write_tensors
from manyhands.transport.collectives import Group, connect_store, serve_store

Results = dict[str, torch.Tensor]


def forked(folder: Path, workers: int, work: Callable[[Group], Results]) -> list[Results]:
    """What each of so many workers made, by rank. None of them outlives the call."""
    store, port = serve_store()
    children = {_fork(folder, rank, workers, port, work): rank for rank in range(workers)}
    left, failed = dict(children), list[int]()
    deadline = time.monotonic() + 120
    try:
        while left and not failed:
            for pid in list(left):
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    rank = left.pop(pid)
                    if status:
                        failed.append(rank)
            if time.monotonic() > deadline:
                failed += left.values()
            time.sleep(0.005)
    finally:
        for pid in left:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    del store
    assert not failed, "\n".join(
        path.read_text() for rank in failed if (path := folder / f"error-{rank}").exists()
    )
    return [read_tensors(folder / f"made-{rank}")[0] for rank in range(workers)]


def _fork(
    folder: Path, rank: int, workers: int, port: int, work: Callable[[Group], Results]
) -> int:
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        torch.set_num_threads(1)
        store = connect_store("127.0.0.1", port)
        group = Group(store, rank, workers, epoch=0, device=torch.device("cpu"), timeout=60)
        made = work(group)
        write_tensors(folder / f"made-{rank}", {k: v.contiguous() for k, v in made.items()}, {})
        group.close()
        code = 0
    except BaseException:  # noqa: BLE001 - a fork must never return into the test
        (folder / f"error-{rank}").write_text(traceback.format_exc())
    finally:
        os._exit(code)
