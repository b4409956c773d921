"""Vital threads: an exception in one ends the worker with a traceback."""

import sys
import textwrap

import pytest

from manyhands.reports import Run

SCRIPT = """
    import ctypes, sys, time
    import torch, torch.nn.functional as F
    import manyhands as mh
    from manyhands.live.member.heartbeat import LinkHeartbeat
    from manyhands.live.server.shard_server import ShardServer

    worker_1 = sys.orig_argv[-1] == "1" and "manyhands.live.worker.process" in sys.orig_argv

    def broken(*_):
        raise ZeroDivisionError("broken on purpose")

    BREAK

    job = mh.Job(
        model=lambda: torch.nn.Linear(4, 2),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=F.cross_entropy,
        data=torch.utils.data.TensorDataset(torch.randn(EPOCH, 4), torch.randint(0, 2, (EPOCH,))),
        global_batch=12,
        epochs=1,
        metrics=(),
    )

    if __name__ == "__main__":
        mh.train(job, sys.argv[1], workers=3, output="run")
"""


@pytest.mark.parametrize(
    ("strategy", "breaks"),
    [
        ("gossip()", "if worker_1: ShardServer._handle = broken"),
        pytest.param(
            *("allreduce()", "if worker_1: LinkHeartbeat._tell = broken"), marks=pytest.mark.slow
        ),
    ],
    ids=["peer server", "heartbeats"],
)
def test_a_worker_whose_thread_has_failed_fails_with_its_traceback(run_script, strategy, breaks):
    text = SCRIPT.replace("BREAK", breaks).replace("EPOCH", "1200000")
    started = run_script(text, strategy)
    assert started.finish(90) != 0
    assert "worker 1 on " in started.text()
    assert "ejected" not in started.text()
    assert started.text().rstrip().endswith("ZeroDivisionError: broken on purpose")


@pytest.mark.slow
def test_a_worker_whose_import_holds_the_interpreter_is_named_and_awaited(start, tmp_path):
    # A function of a library that is called through PyDLL keeps the GIL, as many extensions do.
    holds = "if worker_1: time.sleep(1.5); ctypes.PyDLL(None).sleep(9)"
    text = SCRIPT.replace("BREAK", holds).replace("EPOCH", "240")
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(text), encoding="utf-8")
    started = start(
        *(sys.executable, "-m", "manyhands", "train", "--strategy", "asynchronous()"),
        *("--workers", "3", "--output", "run", "--patience", "6", script, "asynchronous()"),
    )
    assert started.finish(90) == 0, started.text()
    assert "ejected" not in started.text()
    assert "while it starts" in started.text()
    assert "may hold the GIL" in started.text()
    assert Run(started.folder / "run").samples == 240
