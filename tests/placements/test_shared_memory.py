"""`allreduce` in memory that workers of a host share: it equals one worker, and says so."""

import sys
import textwrap

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn

import manyhands as mh
from manyhands.lab.networks.namespaces import NotPermitted, check_permitted
from manyhands.placements import AllReduce
from manyhands.placements.worker.shared_ddp import summable
from manyhands.reports import Run, traffic
from manyhands.transport.shared.layout import room

RUN = """
    import sys
    import torch, torch.nn.functional as F
    import manyhands as mh

    def model():
        return mh.models.MLP(12, (128, 96), 3).double()

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


@pytest.mark.slow
def test_three_workers_equal_one_and_repeat_to_the_bit(trained):
    said, first = trained("allreduce(bucket_mb=0.02)", 3)
    assert "sums         in memory that the workers share" in said
    assert "all within the host" in " ".join(said.split())
    _, again = trained("allreduce(bucket_mb=25)", 3)
    assert torch.equal(first, again), "sums do not depend on buckets"
    said, gloo = trained("allreduce(shared_memory=false)", 3)
    assert "in memory that the workers share" not in said
    _, alone = trained("single()", 1)
    assert (first - gloo).abs().max() < 1e-12
    assert (first - alone).abs().max() < 1e-12


@pytest.mark.slow
def test_sharded_parameters_are_exchanged_there_and_repeat_to_the_bit(trained):
    said, first = trained("fully_sharded()", 3)
    assert "exchanges    in memory that the workers share" in said
    assert "all within the host" in " ".join(said.split())
    _, again = trained("zero(stage=2)", 3)
    assert torch.equal(first, again), "the same sums, whether parameters are freed or not"
    _, alone = trained("single()", 1)
    assert (first - alone).abs().max() < 1e-12


@pytest.mark.slow
def test_two_hosts_with_two_workers_equal_one(trained, start, tmp_path):
    """Two network namespaces, linked by 1 Gbit/s; the virtual twin sends as much between them."""
    try:
        check_permitted()
    except NotPermitted as reason:
        pytest.skip(str(reason))
    _, alone = trained("single()", 1)
    cluster = "2 hosts of 2 workers, 1gbit"
    job = textwrap.dedent(RUN).partition("if __name__")[0]
    (tmp_path / "script.py").write_text(job, encoding="utf-8")
    between = {}
    for strategy in ("allreduce(bucket_mb=1)", "allreduce(shared_memory=false)"):
        for verb in ("train", "simulate"):
            output = tmp_path / f"{verb}-{strategy}"
            started = start(
                *(sys.executable, "-m", "manyhands", verb, "script.py", "--strategy", strategy),
                *("--cluster", cluster, "--output", str(output)),
            )
            assert started.finish(150) == 0, started.text()
            run = Run(output)
            state = torch.cat([each.flatten() for each in run.state_dict().values()])
            assert (state - alone).abs().max() < 1e-12
            between[strategy, verb] = traffic(run.trace).flow("training", "between").payload_sent
            said = " ".join(started.text().split())
            by_hosts = verb == "train" and strategy.startswith("allreduce(bucket_mb")
            assert ("share, then between hosts" in said) == by_hosts
    (live, virtual), (flat, virtual_flat) = (
        (between[strategy, "train"], between[strategy, "simulate"])
        for strategy in ("allreduce(bucket_mb=1)", "allreduce(shared_memory=false)")
    )
    # Of four workers in one ring two send to the other host; here each number is sent once.
    assert virtual / virtual_flat == pytest.approx(2 / 3, rel=0.01)
    # Live, payload is divided between and within hosts by the bytes of sockets, headers included.
    assert live == pytest.approx(virtual, rel=0.1)
    assert flat == pytest.approx(virtual_flat, rel=0.1)


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
    # With larger ones, the gradients of two workers may be held twice within them, not of eight.
    size = sum(one.size for one in AllReduce().forecast_job(job(), 1).step)
    assert AllReduce().shared_bytes(job(), 2) == room(size, 2) + 2 * size
    assert AllReduce().shared_bytes(job(), 8) == room(25 * 2**20 // 8, 8)
    assert AllReduce(shared_memory=False).shared_bytes(job(), 2) == 0
    assert small.shared_bytes(job(), 1) == 0
