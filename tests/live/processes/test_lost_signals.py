"""Signals whose exception the interpreter cannot raise, and Ctrl-C at any moment of a start."""

import os
import signal
import sys
import time

import pytest

LOST = """
import gc, os, signal, sys, time, weakref
from manyhands.live.processes.parent_death import signals_raise

class Thing:
    pass

class Dying:
    def __del__(self):
        arrives()

def arrives(*_):
    os.kill(os.getpid(), number)
    for _ in range(1000):
        pass

def weak():
    thing = Thing()
    kept.append(weakref.ref(thing, arrives))
    del thing

def dies():
    Dying()

def collected():
    gc.callbacks.append(arrives)
    gc.collect()

kept = []
for number in (signal.SIGINT, signal.SIGTERM):
    for lose in (weak, dies, collected):
        told = "nothing"
        try:
            with signals_raise():
                lose()
                gc.callbacks.clear()
                until = time.monotonic() + 10
                while time.monotonic() < until:
                    time.sleep(0.005)
        except BaseException as error:
            told = type(error).__name__
        gc.callbacks[:] = [one for one in gc.callbacks if one is not arrives]
        print(signal.Signals(number).name, lose.__name__, told, flush=True)
"""


def test_a_signal_that_arrives_where_nothing_can_be_raised_is_not_lost(run_script) -> None:
    run = run_script(LOST)
    assert run.finish(100) == 0, run.text()
    told = [line.split() for line in run.text().splitlines() if line.startswith("SIG")]
    raised = {"SIGINT": "KeyboardInterrupt", "SIGTERM": "SystemExit"}
    assert [line[2] for line in told] == [raised[line[0]] for line in told], run.text()
    assert len(told) == 6
    assert "Exception ignored" not in run.text()


JOB = """
import torch, torch.nn.functional as F
import manyhands as mh

data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.arange(64) % 2)
job = mh.Job(
    model=lambda: torch.nn.Linear(4, 2),
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    loss=F.cross_entropy, data=data, global_batch=16, epochs=1_000_000, metrics=(),
)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("to", ["group", "process"])
def test_an_interrupt_at_any_moment_of_a_start_ends_the_command(start, tmp_path, to) -> None:
    path = tmp_path / "script.py"
    path.write_text(JOB, encoding="utf-8")
    command = (sys.executable, "-m", "manyhands", "train", path, "--workers", "2")
    delays = (0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0)
    wrong = []
    for number, delay in enumerate(delays):
        run = start(*command, "--strategy", "allreduce()", "--output", f"run-{number}")
        time.sleep(delay)
        if to == "group":
            os.killpg(run.process.pid, signal.SIGINT)
        else:
            run.process.send_signal(signal.SIGINT)
        code = run.finish(60)
        # Until Python has loaded the command, the signal ends it as it ends any Python program.
        if code not in (130, -signal.SIGINT, 1) or run.tree():
            wrong.append((delay, code, run.text()[-500:]))
        if delay >= 1 and "should not happen" in run.text():
            wrong.append((delay, code, run.text()[-500:]))
    assert not wrong
