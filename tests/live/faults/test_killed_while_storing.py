"""A run is finished when its model is stored, even if a worker is killed while writing it."""

import re

import pytest

from manyhands.reports import Run
from support import wait_for

SCRIPT = """
    import os, pathlib, sys, time
    import torch, torch.nn.functional as F
    import manyhands as mh

    MARK = pathlib.Path("saving")
    WORKERS = 2

    class Slow(torch.nn.Linear):
        trained = False

        def forward(self, inputs):
            if not Slow.trained:
                # Every worker is to train: those who begin early wait for the others. The process
                # that tries the job before the run is one more.
                pathlib.Path(f"trains-{os.getpid()}").touch()
                end = time.monotonic() + 3
                while len([*pathlib.Path().glob("trains-*")]) <= WORKERS and time.monotonic() < end:
                    time.sleep(0.05)
            Slow.trained = True
            return super().forward(inputs)

        def state_dict(self, *args, **kwargs):
            if Slow.trained and not MARK.exists():
                MARK.touch()
                time.sleep(300)
            return super().state_dict(*args, **kwargs)

    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(96, 4), torch.randint(0, 2, (96,)))
    job = mh.Job(
        model=lambda: Slow(4, 2),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=F.cross_entropy,
        data=data,
        global_batch=16,
        epochs=1,
        metrics=(),
    )

    if __name__ == "__main__":
        print(mh.train(job, sys.argv[1], workers=WORKERS, output="run").summary())
"""


@pytest.mark.timeout(170)
@pytest.mark.parametrize(
    "text",
    [
        "asynchronous()",
        pytest.param("gossip()", marks=pytest.mark.slow),
        pytest.param("synchronous()", marks=pytest.mark.slow),
        pytest.param("hogwild()", marks=pytest.mark.slow),
    ],
)
def test_another_worker_stores_the_model_if_the_first_is_killed_while_it_saves(run_script, text):
    started = run_script(SCRIPT, text)
    wait_for((started.folder / "saving").exists, 90, "saving")
    started.worker(0).kill()
    assert started.finish(60) == 0, started.text()
    run = Run(started.folder / "run")
    assert run.status == "finished"
    assert run.samples == 96
    assert set(run.state_dict()) == {"weight", "bias"}


@pytest.mark.timeout(170)
@pytest.mark.parametrize("text", ["asynchronous()", "allreduce()"])
def test_a_run_whose_model_no_worker_stores_has_failed(run_script, text):
    script = SCRIPT.replace("time.sleep(300)", "__import__('os')._exit(0)")
    started = run_script(script.replace("WORKERS = 2", "WORKERS = 1"), text)
    assert started.finish(90) == 1, started.text()
    assert Run(started.folder / "run").status == "failed"
    assert re.search("exited with code 0|no worker stored it", started.text()), started.text()
