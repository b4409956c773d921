"""A stream on three live workers: every sample once, also if a worker is killed."""

from collections import Counter

import pytest

from manyhands.reports import Run
from support import wait_for

SCRIPT = """
    import os, sys, time
    import torch, torch.nn.functional as F
    import manyhands as mh

    class Points(torch.utils.data.IterableDataset):
        def __iter__(self):
            generator = torch.Generator().manual_seed(3)
            for number in range(1001):
                noise = torch.rand(4, dtype=torch.float64)
                yield torch.randn(4, generator=generator, dtype=torch.float64) + noise, number

    PAUSE = float(os.environ.get("PAUSE", "0"))

    def loss(outputs, numbers):
        if torch.is_grad_enabled():
            time.sleep(PAUSE)
            with open(f"seen-{os.getpid()}", "a") as file:
                file.write("".join(f"{number}\\n" for number in numbers.tolist()))
        return F.mse_loss(outputs[:, 0], (numbers % 7).double())

    job = mh.Job(
        model=lambda: torch.nn.Linear(4, 1).double(),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
        loss=loss,
        data=Points(),
        global_batch=48,
        samples=10**6,
        num_workers=int(os.environ.get("LOADERS", "0")),
        metrics=(),
    )

    if __name__ == "__main__":
        how, workers, name = sys.argv[1:]
        mh.train(job, how, workers=int(workers), output=name)
"""


def seen(started) -> Counter[int]:
    """How often each sample was trained on, in all workers.

    The script's own process tries the loss on a batch before the run.
    """
    (started.folder / f"seen-{started.process.pid}").unlink(missing_ok=True)
    return Counter(
        int(line) for path in started.folder.glob("seen-*") for line in path.read_text().split()
    )


@pytest.mark.parametrize(
    ("how", "loaders"),
    [
        ("allreduce()", 0),
        pytest.param("asynchronous()", 0, marks=pytest.mark.slow),
        pytest.param("synchronous()", 2, marks=pytest.mark.slow),
    ],
)
def test_every_sample_once_and_equal_to_one_worker(run_script, how: str, loaders: int) -> None:
    started = run_script(SCRIPT, how, "3", "run", LOADERS=str(loaders))
    assert started.finish() == 0, started.text()
    run = Run(started.folder / "run")
    assert run.samples == 1001
    assert seen(started) == Counter(range(1001))
    if how == "asynchronous()":
        return
    alone = run_script(SCRIPT, "single()", "1", "alone")
    assert alone.finish() == 0, alone.text()
    one, three = Run(alone.folder / "alone").state_dict(), run.state_dict()
    assert max((one[name] - three[name]).abs().max().item() for name in one) <= 1e-9


@pytest.mark.slow
def test_a_killed_worker_loses_no_sample_of_a_stream(run_script) -> None:
    started = run_script(SCRIPT, "asynchronous()", "3", "run", PAUSE="0.05")
    wait_for(lambda: len(seen(started)) > 100, 60, "the first samples")
    started.worker(1).kill()
    assert started.finish() == 0, started.text()
    run = Run(started.folder / "run")
    assert run.samples == 1001
    assert set(seen(started)) == set(range(1001))
    assert "worker 1 on " in started.text()
