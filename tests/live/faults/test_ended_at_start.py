"""Runs that are told to end before they have begun: the same command may be given again."""

import signal
import sys

import pytest

from support import wait_for

JOB = """
import torch, torch.nn.functional as F
import manyhands as mh

data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.arange(64) % 2)
job = mh.Job(
    model=lambda: torch.nn.Linear(4, 2),
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    loss=F.cross_entropy, data=data, global_batch=16, epochs=2, metrics=(),
)
"""
CALL = """
if __name__ == "__main__":
    print(mh.train(job, "allreduce()", workers=2, output="run").summary())
"""


def command(folder, form):
    """The command of a run, in one of its two forms."""
    path = folder / "script.py"
    path.write_text(JOB + (CALL if form == "script" else ""), encoding="utf-8")
    if form == "script":
        return (sys.executable, path)
    about = ("--strategy", "ssp()", "--workers", "2", "--output", "run")
    return (sys.executable, "-m", "manyhands", "train", path, *about)


@pytest.mark.parametrize(
    ("form", "number", "when"),
    [
        ("command", signal.SIGTERM, "trace"),
        ("script", signal.SIGTERM, "trace/agent.jsonl"),
        pytest.param("script", signal.SIGTERM, "trace", marks=pytest.mark.slow),
        pytest.param("command", signal.SIGTERM, "logs/coordinator.err", marks=pytest.mark.slow),
        pytest.param("command", signal.SIGINT, "trace", marks=pytest.mark.slow),
        pytest.param("script", signal.SIGHUP, "logs/coordinator.err", marks=pytest.mark.slow),
    ],
)
def test_a_run_that_is_ended_before_it_begins_can_be_started_again(
    start, tmp_path, form, number, when
) -> None:
    run = start(*command(tmp_path, form))
    wait_for((tmp_path / "run" / when).exists, 60, "the run's folder")
    run.process.send_signal(number)
    code = run.finish(30)
    assert code == (128 + number if form == "command" or number != signal.SIGINT else 1), run.text()
    said = "interrupted" if number == signal.SIGINT else f"ended by {number.name}"
    assert f"manyhands: {said}; all processes are ended" in run.text()
    assert "Traceback" not in run.text()
    wait_for(lambda: not run.tree(), 5, "everything gone")
    again = start(*command(tmp_path, form))
    assert again.finish(90) == 0, again.text()
    assert "128 seen, 0 repeated, 0 lost" in again.text()


def test_a_run_that_has_begun_keeps_its_folder(start, tmp_path) -> None:
    how = command(tmp_path, "command")
    path = tmp_path / "script.py"
    path.write_text(path.read_text().replace("epochs=2", "epochs=100000"), encoding="utf-8")
    run = start(*how)
    trace = tmp_path / "run" / "trace" / "worker-0.jsonl"
    wait_for(lambda: trace.exists() and '"compute"' in trace.read_text(), 60, "training")
    run.process.send_signal(signal.SIGTERM)
    assert run.finish(30) == 128 + signal.SIGTERM, run.text()
    assert "manyhands: ended by SIGTERM; all processes are ended" in run.text()
    again = start(*how)
    assert again.finish(60) == 2, again.text()
    assert "already holds a run" in again.text()


@pytest.mark.slow
def test_a_command_that_is_ended_while_it_loads_says_so(start, tmp_path) -> None:
    path = tmp_path / "script.py"
    begun = "import pathlib, time\npathlib.Path('begun').touch()\ntime.sleep(60)\n"
    path.write_text(begun + JOB, encoding="utf-8")
    run = start(sys.executable, "-m", "manyhands", "train", path, "--workers", "2")
    wait_for((tmp_path / "begun").exists, 60, "the script")
    run.process.send_signal(signal.SIGTERM)
    assert run.finish(20) == 128 + signal.SIGTERM, run.text()
    assert "manyhands: ended by SIGTERM" in run.text()
