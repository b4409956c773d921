"""A server with a shard of a gigabyte: killed, it recovers, and its memory is what was said."""

import os
import time
from pathlib import Path

import psutil
import pytest
import torch

from manyhands.endpoint import Pull, Push
from manyhands.live.assignment import eager_limit
from manyhands.transport.caller import Caller
from manyhands.transport.memory import Segment
from support import wait_for

PARAMETERS = int(os.environ.get("MANYHANDS_LARGE_SHARD", "250_000_000"))
CONSTANT = 512 << 20
"""Bytes of a server's memory that do not depend on its shard: Python, torch, what is under way."""

SERVER = """
    import os, sys, time
    from pathlib import Path
    import torch
    import manyhands as mh
    from manyhands.live.assignment import Assignment, Origin, Overrides
    from manyhands.live.progress import Progress
    from manyhands.live.serving import Serving
    from manyhands.trace import Recorder, live_header

    job = mh.Job(
        model=lambda: torch.nn.Linear(PARAMETERS // 1000, 1000, bias=False),
        optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=0.1),
        loss=lambda outputs, targets: outputs.mean(),
        data=torch.utils.data.TensorDataset(torch.zeros(2, 1), torch.zeros(2)),
        global_batch=2,
        epochs=1,
        metrics=(),
    )

    class Pulse:
        dismissed = False

        def take_fenced(self):
            return []

    if __name__ == "__main__":
        torch.set_num_threads(2)
        # Loading the job sets argv anew.
        folder, life = Path(sys.argv[1]), sys.argv[2]
        script = str(Path(__file__).resolve())
        assignment = Assignment(
            origin=Origin(script, "", "", (script,), "job", None),
            overrides=Overrides(),
            strategy="asynchronous()",
            workers=1,
            host="localhost",
            folder=str(folder),
            coordinator="",
            private=str(folder),
            store_address="",
            store_port=0,
            servers=(f"ipc://{folder}/server",),
            leasing=None,
            agent=os.getppid(),
            devices=("cpu",),
        )
        head = live_header("server", 0, clock=time.monotonic, wall=time.time)
        recorder = Recorder(head, lambda lines: None, time.monotonic)
        serving = Serving(assignment, 0, recorder, Progress())
        (folder / life).write_text("here")
        serving.until_dismissed(Pulse())
"""


def peak(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line) * 1024


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_shard_of_a_gigabyte_recovers_in_bounded_memory(run_script, tmp_path):
    size = 4 * (PARAMETERS // 1000 * 1000)
    script = SERVER.replace("PARAMETERS", str(PARAMETERS))
    segment = Segment(2 * size)
    update, into = segment.memory[:size], segment.memory[size:]
    gradient = torch.frombuffer(update, dtype=torch.float32)
    caller = Caller(
        "worker-0.1",
        {"server-0": f"ipc://{tmp_path}/server"},
        eager=eager_limit(1),
        clock=time.monotonic,
        segment=segment,
    )
    peaks, version = [], 0
    for life in ("first", "second"):
        started = run_script(script, str(tmp_path), life)
        wait_for(lambda life=life: (tmp_path / life).exists(), 600, "the server")
        if version:
            before = torch.frombuffer(into, dtype=torch.float32).sum(dtype=torch.float64).item()
            caller.post("server-0", Pull(), None, into)
            assert caller.receive("server-0", 600).version == version
            after = torch.frombuffer(into, dtype=torch.float32).sum(dtype=torch.float64).item()
            assert after == before
        for _ in range(3):
            version += 1
            gradient.fill_(1.0 / version)
            caller.post("server-0", Push(version - 1, 2), update, into)
            assert caller.receive("server-0", 600).version == version
        server = psutil.Process(started.process.pid)
        peaks.append(peak(server.pid))
        server.kill()
        server.wait()
    caller.close()
    for bytes_ in peaks:
        print(f"peak: {bytes_ / size:.2f} updates of {size >> 20} MiB")
        # Adam's state is three updates: the parameters and two moments.
        assert bytes_ <= 3 * size + 2 * size + CONSTANT
