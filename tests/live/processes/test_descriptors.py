"""Open files: processes raise their limit, and a run that needs more than allowed is refused."""

import os
import sys
from pathlib import Path

from manyhands.live.assignment import Assignment, Leasing
from manyhands.script.origin import Origin, Overrides
from manyhands.transport.control import Line
from manyhands.wire import Goodbye
from support import wait_for

SCRIPT = """
    import manyhands as mh, torch
    data = torch.utils.data.TensorDataset(torch.zeros(8, 2), torch.zeros(8, dtype=torch.long))
    job = mh.Job(
        model=lambda: torch.nn.Linear(2, 2),
        data=data,
        loss=torch.nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        global_batch=8,
        epochs=1,
    )
    if __name__ == "__main__":
        mh.train(job, strategy="asynchronous()", workers=300)
"""


def limits(pid: int) -> tuple[str, str]:
    """The soft and the hard limit on open files of a process."""
    text = Path(f"/proc/{pid}/limits").read_text(encoding="ascii")
    line = next(line for line in text.splitlines() if line.startswith("Max open files"))
    return line.split()[3], line.split()[4]


def test_a_coordinator_raises_its_limit_to_the_hard_one(start, tmp_path):
    (tmp_path / "trace").mkdir()
    address = f"ipc://{tmp_path}/coordinator"
    path = tmp_path / "assignment.json"
    shell = f"ulimit -Sn 128; exec {sys.executable} -m manyhands.live.coordinator.process {path}"
    assignment = Assignment(
        origin=Origin("", "", "", (), "job", None),
        overrides=Overrides(),
        strategy="asynchronous()",
        workers=1,
        host="localhost",
        folder=str(tmp_path),
        coordinator=address,
        private=str(tmp_path / "private"),
        store_address="",
        store_port=0,
        servers=(),
        leasing=Leasing(100, 10, 100, None, evaluates=False),
        agent=os.getpid(),
        devices=("cpu",),
    )
    assignment.write(path)
    started = start("sh", "-c", shell)
    with Line(address, "agent-0") as agent:
        wait_for(lambda: agent.receive(0.1), 30, "a status")
        soft, hard = limits(started.process.pid)
        agent.send(Goodbye(0, 0))
        assert started.finish(20) == 0, started.text()
    assert int(soft) >= min(int(hard), 1 << 20) > 128


def test_a_run_that_needs_more_open_files_than_allowed_is_refused_before_it_starts(start, tmp_path):
    script = tmp_path / "script.py"
    script.write_text("\n".join(line[4:] for line in SCRIPT.splitlines()), encoding="utf-8")
    started = start("sh", "-c", f"ulimit -n 700; exec {sys.executable} {script}")
    assert started.finish(60) != 0
    words = started.text()
    assert "300 workers need 857 open files in one process, but the hard limit is 700" in words
    assert "at most 221 workers" in words
    assert not list(tmp_path.glob("runs/*/logs/worker-*")), "no worker was started"
