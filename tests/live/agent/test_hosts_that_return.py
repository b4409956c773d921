"""Workers that are killed, and come back to the run."""

import pytest

from manyhands.reports import Run
from support import wait_for

SCRIPT = """
    import sys, time
    import torch, torch.nn.functional as F
    import manyhands as mh

    class Slow(torch.nn.Linear):
        def forward(self, inputs):
            time.sleep(0.05)
            return super().forward(inputs)

    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(SAMPLES, 4), torch.randint(0, 2, (SAMPLES,)))
    job = mh.Job(
        model=lambda: Slow(4, 2),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=F.cross_entropy,
        data=data,
        validation=torch.utils.data.Subset(data, range(64)),
        global_batch=16,
        epochs=1,
        metrics=(),
    )

    if __name__ == "__main__":
        print(mh.train(job, sys.argv[1], workers=4, output="run").summary())
"""


def events(run: Run, name: str) -> list[dict[str, str]]:
    coordinators = [one for one in run.trace.processes if one.header.role == "coordinator"]
    return [event.detail for one in coordinators for event in one.events if event.what == name]


@pytest.mark.slow
@pytest.mark.timeout(170)
@pytest.mark.parametrize("text", ["asynchronous(servers=2)", "synchronous()"])
def test_a_killed_worker_is_started_again_and_works_on(run_script, text):
    started = run_script(SCRIPT.replace("SAMPLES", "4800"), text)
    wait_for(lambda: " %)" in started.text(), 90, "training")
    if text == "synchronous()":
        # Whatever forks the workers is gone when the worker is to be started again.
        started.fork_server().kill()
        wait_for(
            lambda: "a new fork server is started" in started.text(), 20, "another fork server"
        )
    started.worker(2).kill()
    wait_for(lambda: "worker 2 on " in started.text() and "has rejoined" in started.text(), 60, "2")
    assert started.finish(140) == 0, started.text()
    run = Run(started.folder / "run")
    assert run.status == "finished"
    assert run.samples == 4800
    assert "the other workers continue, and it is restarted" in started.text()
    (returned,) = events(run, "returned")
    assert returned["member"].startswith("worker 2 on ")
    lives = [process for process in run.trace.workers if process.header.rank == 2]
    assert lives[-1].totals.samples > 0, "it has worked since"
