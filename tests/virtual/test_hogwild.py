"""Hogwild and central storage on the virtual cluster: shared parameters on one host."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset
from virtual_jobs import a_job

from manyhands.cluster import Link
from manyhands.protocols import CentralStorage, Hogwild
from manyhands.reports import accounting, staleness
from manyhands.sampling.permutation import permutation
from manyhands.virtual import Faults, ProcessHosts

SAMPLES, WORKERS, BATCH = 120, 3, 12
STEP = 0.1


def a_normal_job():
    """Batch norm, and a momentum that every worker has of its own, in float64."""
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(SAMPLES, 4, generator=generator, dtype=torch.float64)
    return a_job(
        model=lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)).double(),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5),
        data=TensorDataset(inputs, inputs[:, :2].cos()),
        global_batch=BATCH,
        epochs=1,
    )


def by_hand(job) -> dict[str, torch.Tensor]:
    """The same by hand: all read, then write one after the other, each reading when it wrote."""
    torch.manual_seed(job.seed)
    shared = job.model()
    weights = list(shared.parameters())
    optimizers = [job.optimizer(shared) for _ in range(WORKERS)]
    order = permutation(SAMPLES, job.seed, 0)
    share = BATCH // WORKERS
    parts = [order[start : start + share] for start in range(0, SAMPLES, share)]

    def gradient(indices, values):
        model = job.model()
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), values, strict=True):
                parameter.copy_(value)
        inputs, targets = job.data[indices]
        job.loss(model(inputs), targets).backward()
        return [parameter.grad for parameter in model.parameters()]

    def read():
        return [weight.detach().clone() for weight in weights]

    seen = [read() for _ in range(WORKERS)]
    for number, part in enumerate(parts):
        worker = number % WORKERS
        for weight, grad in zip(weights, gradient(part, seen[worker]), strict=True):
            weight.grad = grad
        optimizers[worker].param_groups[0]["lr"] = 0.05 * share / BATCH
        optimizers[worker].step()
        seen[worker] = read()
    return dict(shared.state_dict())


def test_a_gradient_is_of_what_was_there_when_computing_began(virtually) -> None:
    job = a_normal_job()
    done = virtually(job, Hogwild(), workers=WORKERS, seconds=f"constant({STEP})")
    wanted, got = by_hand(job), done.run.state_dict()
    for name, value in wanted.items():
        if "running" not in name and "tracked" not in name:
            assert (got[name] - value).abs().max().item() <= 1e-12, name
    spread = staleness(done.run.trace)
    assert spread is not None
    assert spread.updates == SAMPLES // (BATCH // WORKERS)
    # 0, 1, 2 in the first round, in which all began together; then what the others wrote.
    assert spread.mean * spread.updates == sum(range(WORKERS)) + 2 * (spread.updates - WORKERS)


def test_staleness_is_told_by_worker_and_nothing_is_sent(virtually) -> None:
    done = virtually(a_job(), Hogwild(), seconds="lognormal(0.1, cv=0.5)")
    assert {p.name for p in done.run.trace.workers if p.staleness} == {
        f"worker-{rank}" for rank in range(4)
    }
    assert "  sent         nothing\n" in done.run.summary()
    assert not [process for process in done.run.trace.processes if process.header.role == "server"]


def test_the_same_run_twice_is_the_same_to_the_bit(virtually) -> None:
    runs = [virtually(a_job(), Hogwild(), seconds="lognormal(0.1, cv=0.5)") for _ in range(2)]
    assert runs[0].digest == runs[1].digest


def test_a_worker_that_dies_while_it_computes_has_written_nothing(virtually) -> None:
    done = virtually(a_job(), Hogwild(), faults="crash(worker=1, at=0.35)", detection=0.5)
    kept = accounting(done.run.trace)
    assert (kept.seen, kept.repeated, kept.lost) == (400, 5, 0)
    spread = staleness(done.run.trace)
    assert spread is not None
    assert spread.updates == 80


@pytest.mark.parametrize("protocol", [Hogwild(), CentralStorage()], ids=str)
@pytest.mark.parametrize("seed", range(25))
def test_every_sample_is_trained_on_whatever_happens(virtually, protocol, seed) -> None:
    servers = max(1, protocol.servers)
    faults = Faults.draw(seed, 4, servers, 3.0)
    if not protocol.servers:
        kept = [fault for fault in faults.faults if "server" not in str(fault)]
        faults = Faults(tuple(kept))
    done = virtually(a_job(), protocol, faults=faults, seconds="gamma(0.1, cv=0.5)", detection=1.0)
    kept = accounting(done.run.trace)
    assert (kept.seen, kept.lost) == (400, 0)
    assert done.run.status == "finished"
    if protocol.lockstep:
        spread = staleness(done.run.trace)
        assert spread is not None
        assert spread.most == 0, "nobody steps while somebody reads"


@pytest.mark.parametrize("protocol", [Hogwild(), CentralStorage()], ids=str)
def test_more_than_one_host_is_refused_with_the_fix(virtually, protocol) -> None:
    places = ProcessHosts.host_each(2, protocol.servers, Link(1e9))
    with pytest.raises(ValueError, match=r"use one host, or .* synchronous\(\)"):
        virtually(a_job(), protocol, places=places)


def test_gpus_cannot_write_the_host_memory_but_may_read_it() -> None:
    with pytest.raises(ValueError, match=r"cuda:0, cuda:1 cannot: hide the GPUs"):
        Hogwild().check_places(["a"], ["cuda:1", "cuda:0"])
    Hogwild().check_places(["a"], ["cpu", "cpu"])
    CentralStorage().check_places(["a"], ["cuda:0", "cuda:1"])


def test_central_storage_sends_gradients_and_no_parameters(virtually) -> None:
    central = virtually(a_job(), CentralStorage())
    (server,) = [p for p in central.run.trace.processes if p.header.role == "server"]
    updates = central.run.samples // 5
    size = (4 * 2 + 2) * 4
    training = server.totals.traffic["training/within"]
    assert training.payload_received == updates * size
    assert training.payload_sent == 0
