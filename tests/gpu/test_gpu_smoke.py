"""Runs on real GPUs: each strategy trains as one GPU does. Skipped where there are none."""

import pytest
import torch

import manyhands as mh

COUNT = torch.cuda.device_count() if torch.cuda.is_available() else 0
pytestmark = pytest.mark.skipif(COUNT < 2, reason=f"needs 2 GPUs with NCCL, and there are {COUNT}")

SCRIPT = """
    import sys
    import torch, torch.nn.functional as F
    import manyhands as mh

    source = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 20, (48, 17), generator=source)
    data = torch.utils.data.TensorDataset(tokens[:, :-1], tokens[:, 1:])
    job = mh.Job(
        model=lambda: mh.models.GPT(vocabulary=20, length=16, width=32, layers=2, heads=2),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.05),
        loss=F.cross_entropy,
        data=data,
        validation=data,
        metrics=(),
        global_batch=8,
        epochs=2,
    )

    if __name__ == "__main__":
        how, workers = sys.argv[1:]
        mh.train(job, how, workers=int(workers), output=f"run-{workers}")
"""


def trained(run_script, how, workers):
    started = run_script(SCRIPT, how, str(workers))
    assert started.finish(300) == 0, started.text()
    return mh.Run(started.folder / f"run-{workers}").state_dict()


@pytest.mark.parametrize(
    "how", ["allreduce()", "fully_sharded()", "zero()", "tensor()", "context()", "offload()"]
)
def test_two_gpus_train_as_one_does(run_script, how):
    alone = trained(run_script, "single()", 1)
    together = trained(run_script, how, 2)
    for name, tensor in alone.items():
        assert torch.allclose(together[name], tensor, rtol=1e-3, atol=1e-4), name


def test_workers_with_servers_learn(run_script):
    state = trained(run_script, "asynchronous()", 2)
    assert all(tensor.isfinite().all() for tensor in state.values())


def test_a_pipeline_is_refused_in_words(run_script):
    started = run_script(SCRIPT, "pipeline()", "2")
    assert started.finish(300) != 0
    assert "which NCCL ignores" in started.text()
