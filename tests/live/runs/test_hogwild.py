"""Hogwild and central storage on real processes: one memory, and nothing left of it."""

import contextlib
import json
import time
from pathlib import Path

import psutil
import pytest

from manyhands.reports import Run, staleness
from support import wait_for

EXACT = """
    import json, sys
    import torch, torch.nn.functional as F
    from torch import nn
    import manyhands as mh

    torch.set_default_dtype(torch.float64)
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(1001, 20, generator=generator)
    targets = torch.randint(0, 5, (1001,), generator=generator)
    kinds = {
        "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=0.003, weight_decay=0.1),
    }
    job = mh.Job(
        model=lambda: nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 5)),
        optimizer=kinds[sys.argv[1]],
        loss=F.cross_entropy,
        data=torch.utils.data.TensorDataset(inputs, targets),
        validation=torch.utils.data.TensorDataset(inputs[:503], targets[:503]),
        metrics=["accuracy"],
        global_batch=37,
        epochs=3,
        seed=11,
    )

    if __name__ == "__main__":
        results, first = {}, None
        several = [("central_storage()", workers) for workers in (1, 4)]
        for strategy, workers in [("single()", 1), *several]:
            run = mh.train(job, strategy, workers=workers)
            state = run.state_dict()
            first = first or state
            worst = max((state[key] - first[key]).abs().max().item() for key in first)
            results[f"{strategy} {workers}"] = [worst, run.metrics, run.samples]
        print("RESULTS", json.dumps(results))
"""


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_central_storage_equals_single_whatever_the_workers(run_script, kind):
    started = run_script(EXACT, kind)
    assert started.finish(220) == 0, started.text()
    results = json.loads(started.text().split("RESULTS ")[1].splitlines()[0])
    assert len(results) == 3
    for name, (worst, metrics, samples) in results.items():
        assert worst <= 1e-9, name
        assert metrics == pytest.approx(results["single() 1"][1], abs=1e-9), name
        assert samples == 3003


MNIST = """
    import sys
    import torch, torch.nn.functional as F
    import manyhands as mh

    job = mh.Job(
        model=mh.models.MLP,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        loss=F.cross_entropy,
        data=torch.utils.data.Subset(mh.data.mnist("train"), range(15_000)),
        validation=mh.data.mnist("test"),
        metrics=["accuracy"],
        global_batch=128,
        epochs=1,
    )

    if __name__ == "__main__":
        print(mh.train(job, sys.argv[1], workers=4, output="run").summary())
"""


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "strategy", ["hogwild()", pytest.param("central_storage()", marks=pytest.mark.slow)]
)
def test_four_workers_reach_90_percent_on_a_quarter_of_mnist(run_script, strategy):
    started = run_script(MNIST, strategy)
    assert started.finish(220) == 0, started.text()
    print(started.text())
    run = Run(started.folder / "run")
    assert run.samples == 15_000
    assert run.metrics["accuracy"] >= 0.9
    spread = staleness(run.trace)
    assert spread is not None
    if strategy == "hogwild()":
        assert spread.updates == 472, "four parts of each of 118 batches"
        assert spread.most > 0, "others wrote while a gradient was computed"
        assert all(worker.staleness for worker in run.trace.workers)
        assert "  sent         nothing\n" in started.text()
    else:
        assert spread.most == 0


SLOW = """
    import sys, time
    import torch
    import manyhands as mh

    class Counter(torch.nn.Module):
        # Larger than a page by far, so that a kill may hit in the middle of a write.
        def __init__(self):
            super().__init__()
            self.count = torch.nn.Parameter(torch.zeros(500_000, dtype=torch.float64))

        def forward(self, x):
            return -(self.count * 1.0).sum() * x.mean()

    def loss(outputs, targets):
        time.sleep(0.005)
        return outputs

    job = mh.Job(
        model=Counter,
        # One sample per update of a global batch of 4: the rate is 4, so each adds exactly 1.
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=4.0),
        loss=loss,
        data=torch.utils.data.TensorDataset(
            torch.ones(100_000, dtype=torch.float64), torch.zeros(100_000)
        ),
        global_batch=4,
        samples=int(sys.argv[2]),
        metrics=(),
    )

    if __name__ == "__main__":
        run = mh.train(job, sys.argv[1], workers=4, output="run")
        counts = run.state_dict()["count"]
        print(run.summary())
        print("COUNTS", counts.min().item(), counts.max().item())
"""


@pytest.fixture
def nothing_left(tmp_path):
    """Neither shared memory nor private folders are left."""
    shm = Path("/dev/shm")  # noqa: S108 - to see that nothing is left there
    before = set(shm.iterdir())
    yield
    assert set(shm.iterdir()) - before == set()
    assert list(tmp_path.glob("manyhands-*")) == []


def is_training(started, updates=20):
    assert started.process.poll() is None, started.text()
    traces = started.folder / "run" / "trace"
    found = [traces / f"worker-{rank}.jsonl" for rank in range(4)]
    return all(path.exists() and path.read_text().count('"compute"') > updates for path in found)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("strategy", ["hogwild()", "central_storage()"])
def test_a_killed_worker_is_named_and_the_others_continue(run_script, nothing_left, strategy):
    started = run_script(SLOW, strategy, "2000")
    wait_for(lambda: is_training(started), 90, "training")
    started.worker(0).kill()
    assert started.finish(150) == 0, started.text()
    text = started.text()
    assert "worker 0 on " in text
    assert "the other workers continue" in text
    run = Run(started.folder / "run")
    assert run.status == "finished"
    assert run.samples >= 2000
    assert " 0 lost" in text
    assert started.tree() == []
    least, most = (float(number) for number in text.split("COUNTS ")[1].split()[:2])
    if strategy == "hogwild()":
        # Concurrent writes may lose a change; most of them are there.
        assert 1000 < least <= most <= 2000 + 2
    else:
        # A step is all or nothing; what had arrived of the dead one counts, and is given again.
        assert least == most
        assert 2000 <= least <= 2000 + 2


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_server_of_central_storage_is_killed_and_no_step_is_lost(run_script, nothing_left):
    started = run_script(SLOW, "central_storage()", "2000")
    wait_for(lambda: is_training(started), 90, "training")
    for kill in (1, 2, 3):
        with contextlib.suppress(psutil.NoSuchProcess):
            started.named("manyhands.live.server.process", "0").kill()
        log = started.folder / "run" / "logs" / f"server-0.{kill}.err"
        wait_for(log.exists, 30, "its successor")
        time.sleep(0.2 * kill)
        wait_for(lambda: started.named("manyhands.live.server.process", "0"), 30, "its successor")
    assert started.finish(150) == 0, started.text()
    assert "COUNTS 2000.0 2000.0" in started.text()


@pytest.mark.timeout(120)
def test_a_killed_agent_leaves_no_memory_and_no_process(run_script, nothing_left):
    started = run_script(SLOW, "hogwild()", "90000")
    wait_for(lambda: is_training(started), 90, "training")
    assert started.tree()
    started.process.kill()
    started.process.wait()
    wait_for(lambda: not started.tree(), 20, "everything gone")
