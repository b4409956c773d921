"""Worker output in the terminal: the lines of worker 0, and the warnings of all workers once."""

import sys

import pytest

from manyhands.live.agent.worker_output import WorkerOutput


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def echo(tmp_path, said, clock) -> WorkerOutput:
    echo = WorkerOutput(tmp_path, said.append, clock)
    for rank in range(3):
        echo.follow(rank, f"worker-{rank}")
    return echo


WARNING = "/home/job.py:7: UserWarning: sizes differ: [8, 1] and [8]\n  loss = mse(a, b)\n"


def test_lines_of_worker_0_and_warnings_of_all_are_shown_once(tmp_path, echo, said, clock) -> None:
    for rank in range(3):
        (tmp_path / f"worker-{rank}.out").write_text(f"hello from {rank}\nunfinished")
        (tmp_path / f"worker-{rank}.err").write_text(WARNING if rank else "")
    (tmp_path / "worker-2.err").write_text(WARNING.replace("sizes", "shapes"))
    echo.look()
    assert said == [
        "[worker 0] hello from 0",
        "[worker 1] " + WARNING.splitlines()[0],
        "[worker 2] " + WARNING.splitlines()[0].replace("sizes", "shapes"),
    ]
    (tmp_path / "worker-0.err").write_text(WARNING)
    clock.now += 10.0
    echo.look()
    assert said[3:] == ["[worker 0]   loss = mse(a, b)"], "known already, but for its source line"
    echo.end(failed=False)
    assert said[4:] == ["[worker 0] unfinished"]


def test_a_traceback_is_left_to_the_failure_that_it_leads_to(tmp_path, echo, said, clock) -> None:
    text = "before\nTraceback (most recent call last):\n  File x\nValueError: no\n"
    (tmp_path / "worker-0.err").write_text(text)
    echo.look()
    echo.end(failed=True)
    assert said == ["[worker 0] before"]


def test_a_traceback_that_the_worker_survives_is_shown(tmp_path, echo, said, clock) -> None:
    text = "Traceback (most recent call last):\nValueError: no\n"
    (tmp_path / "worker-0.err").write_text(text)
    echo.look()
    assert said == []
    clock.now += 6.0
    echo.look()
    assert said == [f"[worker 0] {line}" for line in text.splitlines()]


SCRIPT = """
import torch, torch.nn.functional as F
import manyhands as mh

print("job of the script", flush=True)
made = torch.Generator().manual_seed(0)
inputs = torch.randn(32, 4, generator=made)
job = mh.Job(
    model=lambda: torch.nn.Linear(4, 1),
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.01),
    loss=F.mse_loss,
    data=torch.utils.data.TensorDataset(inputs, inputs.sum(1)),
    global_batch=8, epochs=1, metrics=(),
)
if __name__ == "__main__":
    mh.train(job, "synchronous()", workers=2)
"""


def test_a_broadcasting_warning_reaches_the_user_once(start, tmp_path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    run = start(sys.executable, "script.py")
    assert run.finish() == 0, run.text()
    assert run.text().count("Using a target size") == 1
    assert "[worker 0] job of the script" in run.text()
    assert "[worker 1] job" not in run.text()
