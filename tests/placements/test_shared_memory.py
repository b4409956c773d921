"""`allreduce` on one host: sums in shared memory equal sums over connections, and say so."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn

import manyhands as mh
from manyhands.placements import AllReduce
from manyhands.placements.worker.shared_ddp import summable
from manyhands.reports import Run

RUN = """
    import sys
    import torch, torch.nn.functional as F
    import manyhands as mh

    def model():
        return mh.models.MLP(12, (32, 24), 3).double()

    def data():
        generator = torch.Generator().manual_seed(1)
        inputs = torch.randn(240, 12, generator=generator, dtype=torch.float64)
        return torch.utils.data.TensorDataset(
            inputs, torch.randint(0, 3, (240,), generator=generator)
        )

    job = mh.Job(
        model=model,
        optimizer=lambda module: torch.optim.AdamW(module.parameters(), lr=0.01),
        loss=F.cross_entropy,
        data=data(),
        global_batch=30,
        epochs=3,
    )
    if __name__ == "__main__":
        run = mh.train(job, sys.argv[1], workers=int(sys.argv[2]), output=sys.argv[3])
        print(run.summary())
"""


@pytest.fixture
def trained(run_script, tmp_path):
    """Train the job above: what it printed and its parameters."""

    def begin(strategy, workers):
        output = tmp_path / strategy
        script = run_script(RUN, strategy, str(workers), str(output))
        assert script.finish(120) == 0, script.text()
        state = Run(output).state_dict()
        return script.text(), torch.cat([each.flatten() for each in state.values()])

    return begin


def test_three_workers_equal_one_and_repeat_to_the_bit(trained):
    said, first = trained("allreduce(bucket_mb=0.002)", 3)
    assert "sums         in memory that the workers share" in said
    assert "all within the host" in " ".join(said.split())
    _, again = trained("allreduce(bucket_mb=25)", 3)
    assert torch.equal(first, again), "sums do not depend on buckets"
    said, gloo = trained("allreduce(shared_memory=false)", 3)
    assert "in memory that the workers share" not in said
    _, alone = trained("single()", 1)
    assert (first - gloo).abs().max() < 1e-12
    assert (first - alone).abs().max() < 1e-12


def test_what_cannot_be_summed_there_is_left_to_the_engine():
    assert summable(nn.Linear(2, 2))
    assert summable(nn.Linear(2, 2).bfloat16())
    assert not summable(nn.Linear(2, 2).half())
    assert not summable(nn.Sequential(nn.Embedding(4, 2, sparse=True)))


def test_the_forecast_has_two_chunks_for_each_worker():
    def job():
        data = torch.utils.data.TensorDataset(torch.zeros(8, 10), torch.zeros(8).long())
        return mh.Job(
            model=lambda: mh.models.MLP(10, (1000, 1000), 10),
            optimizer=lambda module: torch.optim.SGD(module.parameters(), lr=0.1),
            loss=F.cross_entropy,
            data=data,
            global_batch=8,
            epochs=1,
        )

    small = AllReduce(bucket_mb=0.5)
    for workers in (2, 4, 8):
        # 4 MB of gradients: more than a chunk, so all chunks are as large as two buckets.
        page = 4096
        assert small.shared_bytes(job(), workers) <= 2 * 0.5 * 2**20 + (2 * workers + 1) * page
    assert AllReduce(shared_memory=False).shared_bytes(job(), 2) == 0
    assert small.shared_bytes(job(), 1) == 0
