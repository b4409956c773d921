"""128 real workers on one machine: they start, train MNIST and end, under four strategies."""

import sys

import pytest

import manyhands as mh

JOB = """
    import torch, torch.nn.functional as F
    import manyhands as mh

    job = mh.Job(
        model=lambda: mh.models.MLP(hidden=(32,)),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.05),
        loss=F.cross_entropy,
        data=mh.data.mnist("train"),
        validation=torch.utils.data.Subset(mh.data.mnist("test"), range(1280)),
        global_batch=1280,
        samples=25_600,
    )
    if __name__ == "__main__":
        mh.train(job)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("strategy", ["asynchronous", "synchronous", "local_sgd(5)", "gossip"])
def test_128_workers_train(strategy: str, start, tmp_path) -> None:
    (tmp_path / "job.py").write_text("\n".join(line[4:] for line in JOB.splitlines()))
    command = (sys.executable, "-m", "manyhands", "train", "job.py", "--strategy", strategy)
    started = start(*command, "--workers", "128", "--output", "run")
    assert started.finish(580) == 0, started.text()
    run = mh.Run(tmp_path / "run")
    assert run.samples == 25_600
    assert run.metrics["loss"] < 2.3, "the loss of a guess among ten classes"
    assert not started.tree(), "processes are left behind"
    print(run.summary())
