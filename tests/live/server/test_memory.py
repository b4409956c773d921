"""A server's memory does not depend on how many workers push to it."""

import time
from pathlib import Path

import psutil
import pytest

from manyhands.endpoint import Push
from manyhands.live.assignment import eager_limit
from manyhands.transport.caller import Caller
from support import wait_for

SERVER = """
    import os, sys, time
    from pathlib import Path
    import psutil
    import torch
    import manyhands as mh
    from manyhands.live.assignment import Assignment, Origin, Overrides
    from manyhands.live.member.progress import Progress
    from manyhands.live.server.shard_server import ShardServer
    from manyhands.trace import Recorder, live_header

    job = mh.Job(
        model=lambda: torch.nn.Linear(1000, 9999),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=lambda outputs, targets: outputs.mean(),
        data=torch.utils.data.TensorDataset(torch.zeros(64, 1000), torch.zeros(64)),
        global_batch=64,
        epochs=1,
        metrics=(),
    )

    class Heartbeat:
        dismissed = False

        def take_fenced(self):
            return []

    if __name__ == "__main__":
        folder = Path(sys.argv[1])
        script = str(Path(__file__).resolve())
        assignment = Assignment(
            origin=Origin(script, "", "", (script,), "job", None),
            overrides=Overrides(),
            strategy="asynchronous()",
            workers=64,
            host="localhost",
            folder=str(folder),
            coordinator="",
            private=str(folder),
            store_address="",
            store_port=0,
            servers=(f"ipc://{folder}/server",),
            leasing=None,
            agent=os.getppid(),
            devices=("cpu",) * 64,
        )
        head = live_header("server", 0, clock=time.monotonic, wall=time.time)
        recorder = Recorder(head, lambda lines: None, time.monotonic)
        before = psutil.Process().memory_info().rss
        server = ShardServer(assignment, 0, recorder, Progress())
        (folder / "before").write_text(str(before))
        server.until_dismissed(Heartbeat())
"""
MODEL = 4 * (1000 * 9999 + 9999)
WORKERS = 64
CONSTANT = 128 << 20
"""What is not proportional to the model: chunks under way in ZeroMQ, buffers of Python's."""


@pytest.mark.slow
@pytest.mark.timeout(170)
def test_64_workers_that_push_40_megabytes_each_fit_into_three_models_and_a_constant(
    run_script, tmp_path
):
    started = run_script(SERVER, str(tmp_path))
    ready = Path(tmp_path / "before")
    wait_for(lambda: ready.exists() and ready.read_text(), 60, "the server")
    before = int(ready.read_text())
    server = psutil.Process(started.process.pid)
    address = f"ipc://{tmp_path}/server"
    # One process stands for all workers: what counts is 64 connections that all want to push.
    payload, into = memoryview(bytes(MODEL)), memoryview(bytearray(MODEL))
    callers = [
        Caller(
            f"worker-{rank}.1",
            {"server-0": address},
            eager=eager_limit(WORKERS),
            clock=time.monotonic,
        )
        for rank in range(WORKERS)
    ]
    for caller in callers:
        caller.post("server-0", Push(0, 1), payload, into)
    waiting, deadline = list(callers), time.monotonic() + 120
    while waiting and time.monotonic() < deadline:
        for caller in list(waiting):
            try:
                caller.receive("server-0", 0.01)
            except TimeoutError:
                continue
            waiting.remove(caller)
    assert not waiting, f"{len(waiting)} workers were not answered"
    status = Path(f"/proc/{server.pid}/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line) * 1024
    for caller in callers:
        caller.close()
    grown = peak - before
    print(f"peak: 3 models and {(grown - 3 * MODEL) >> 20} MiB above the bare process")
    assert grown < 3 * MODEL + CONSTANT
