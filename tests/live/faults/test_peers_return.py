"""A worker without servers is killed in mid-run: its successor gets a replica of another worker."""

import re

import pytest

from manyhands.reports import Run
from manyhands.reports.figures.speed import accounting
from support import wait_for

SCRIPT = """
    import os, sys, time
    import torch, torch.nn.functional as F
    import manyhands as mh

    def loss(outputs, targets):
        # The run waits for the successor of the killed worker, and goes on at full speed then.
        time.sleep(0.0 if os.path.exists("back") else 0.2)
        return F.mse_loss(outputs, targets)

    torch.manual_seed(0)
    inputs = torch.randn(SAMPLES, 4)
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
    job = mh.Job(
        model=lambda: torch.nn.Linear(4, 1),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5),
        loss=loss,
        data=data,
        validation=data,
        global_batch=24,
        epochs=1,
        metrics=(),
    )

    if __name__ == "__main__":
        mh.train(job, sys.argv[1], workers=int(sys.argv[2]), output="run")
"""
SAMPLES = 6000
STRATEGIES = (
    pytest.param("gossip()", 3),
    pytest.param("gossip(graph=exponential, order=asynchronous)", 3, marks=pytest.mark.slow),
    pytest.param("gossip(graph=random_pairs, codec=int8())", 4, marks=pytest.mark.slow),
    pytest.param("push_sum(graph=ring)", 3, marks=pytest.mark.slow),
    pytest.param("broadcast()", 3, marks=pytest.mark.slow),
    pytest.param("hogwild()", 3, marks=pytest.mark.slow),
    pytest.param("central_storage()", 3, marks=pytest.mark.slow),
)


def kill(started, rank):
    """Kill a worker that is training, and wait until its successor has joined."""
    words = f"worker {rank} has rejoined"
    before = started.text().count(words)
    started.worker(rank).kill()
    wait_for(lambda: started.text().count(words) > before, 60, "its successor")


def begin(run_script, strategy, workers):
    """Start a run, and wait until it trains."""
    started = run_script(SCRIPT.replace("SAMPLES", str(SAMPLES)), strategy, str(workers))
    wait_for(lambda: re.search(r"[1-9][\d,]* of 6,000 samples", started.text()), 60, "samples")
    return started


def finished(started):
    """The run, which is to end well from here on, at full speed."""
    (started.folder / "back").touch()
    assert started.finish(90) == 0, started.text()
    run = Run(started.folder / "run")
    assert (run.samples, accounting(run.trace).lost) == (SAMPLES, 0), "every sample exactly once"
    assert run.metrics["loss"] < 1e-3
    return run


@pytest.mark.timeout(150)
@pytest.mark.parametrize(("strategy", "workers"), STRATEGIES)
def test_a_killed_worker_is_restarted_and_rejoins(run_script, strategy, workers):
    started = begin(run_script, strategy, workers)
    kill(started, 2)
    assert "the other workers continue, and it is restarted" in started.text()
    run = finished(started)
    second = [process for process in run.trace.workers if process.header.rank == 2][1]
    assert sum(span.kind == "compute" for span in second.spans) > 20, "it trains again"
    if strategy not in ("hogwild()", "central_storage()"):
        came = second.totals.traffic["training/within"].payload_received
        assert came > 200, "its neighbours send it more than the replica that it started from"


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("strategy", ["gossip()", "push_sum()"])
def test_all_workers_but_one_are_killed_in_turn_and_one_of_them_twice(run_script, strategy):
    started = begin(run_script, strategy, 3)
    for rank in (0, 2, 2, 1):
        kill(started, rank)
    finished(started)


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_worker_and_the_coordinator_are_killed_together(run_script):
    started = begin(run_script, "gossip()", 3)
    started.coordinator().kill()
    kill(started, 1)
    started.coordinator().kill()
    kill(started, 1)
    finished(started)


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_the_run_fails_if_no_worker_has_the_parameters_any_more(run_script):
    started = begin(run_script, "gossip()", 2)
    for rank in (0, 1):
        started.worker(rank).kill()
    assert started.finish(60) != 0
    assert not (started.folder / "run" / "model.safetensors").exists()


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_killed_member_of_an_ensemble_stays_away(run_script):
    started = begin(run_script, "ensemble()", 3)
    started.worker(2).kill()
    wait_for(lambda: "worker 2 on " in started.text(), 20, "its name")
    assert "it is restarted" not in started.text()
    (started.folder / "back").touch()
    assert started.finish(90) == 0, started.text()
    assert Run(started.folder / "run").samples == SAMPLES
