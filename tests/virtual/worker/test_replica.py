"""The replica's contract: real gradients, on time, and nothing after death."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from virtual_jobs import a_job

from manyhands.endpoint import Terms
from manyhands.leasing.leases import Lease
from manyhands.virtual.simulator.cores import Cores
from manyhands.virtual.simulator.kernel import Kernel
from manyhands.virtual.simulator.member import Crashed, VirtualProcess
from manyhands.virtual.worker.replica import VirtualBatch, VirtualReplica
from manyhands.virtual.worker.shared_model import Replication, SharedModel
from manyhands.wire.leasing import Over


class Quiet:
    """In place of a trace and of a coordinator: remembers what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def commit(self, number: int) -> bool:
        self.told.append(("commit", number))
        return True

    async def lease(self, _: object) -> Over:
        self.told.append(("lease",))
        return Over(stores=False)

    def __getattr__(self, name: str) -> object:
        return lambda *arguments: self.told.append((name, *arguments))


def replicas(count: int, job=None):
    """So many workers on one model."""
    kernel, quiet = Kernel(), Quiet()
    model = SharedModel(job or a_job(), 2)
    cores = Cores(kernel, count)
    made = []
    for rank in range(count):
        member = VirtualProcess(f"worker-{rank}", "a")
        member.begin()
        one = Replication(model, rank)
        servers = ("server-0", "server-1")
        arguments = (
            member,
            rank,
            servers,
            Terms(20, count),
            one,
            model,
            quiet,
            cores,
            lambda: 2.0,
            kernel,
            quiet,
        )
        made.append((member, VirtualReplica(*arguments)))
    return kernel, quiet, made


def a_batch(number: int = 0, start: int = 0, stop: int = 10) -> VirtualBatch:
    return VirtualBatch(Lease(number, 0, start, stop), stop - start, 20, 0, 0)


def run(kernel: Kernel, member: VirtualProcess, work) -> None:
    kernel.start(member, work, kernel.finish)
    kernel.run()


def test_all_shards_are_ready_at_the_end_of_the_compute_time() -> None:
    kernel, _, [(member, replica)] = replicas(1)
    seen: list[tuple[int, float]] = []

    async def work() -> None:
        await replica.gradient(a_batch(), ready=lambda s: seen.append((s, kernel.now)))

    run(kernel, member, work())
    assert sorted(seen) == [(0, 2.0), (1, 2.0)]


def test_workers_compute_on_their_own_parameters_and_buffers_on_one_model() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2))

    def updates_of(rank: int, kernel: Kernel, made, found: dict[object, bytes]) -> None:
        """Three batches of one worker, whose parameters are all alike and its own."""
        member, replica = made
        for server in range(2):
            replica.parameters(server).view(torch.float32).fill_(0.1 * (rank + 1))

        async def work() -> None:
            for step in range(3):

                def ready(server: int, step: int = step) -> None:
                    found[rank, step, server] = replica.update(server).numpy().tobytes()

                await replica.gradient(a_batch(step, 10 * step, 10 * step + 10), ready)

        kernel.start(member, work(), lambda: None)

    job = a_job(model=model)
    together: dict[object, bytes] = {}
    kernel, _, made = replicas(2, job)
    for rank in range(2):
        updates_of(rank, kernel, made[rank], together)
    kernel.after(9, kernel.finish)
    kernel.run()
    alone: dict[object, bytes] = {}
    for rank in range(2):
        kernel, _, made = replicas(2, job)
        updates_of(rank, kernel, made[rank], alone)
        kernel.after(9, kernel.finish)
        kernel.run()
    assert together == alone
    assert len(set(together.values())) == 12, "all differ: by worker, by batch, by shard"


def test_an_update_is_gone_when_another_has_computed() -> None:
    kernel, _, [(one, first), (_, second)] = replicas(2)

    async def work() -> None:
        await first.gradient(a_batch(), lambda _: None)
        assert first.update(0).any()
        await second.gradient(a_batch(), lambda _: None)
        with pytest.raises(RuntimeError, match="post the update first"):
            first.update(0)

    run(kernel, one, work())


def test_the_dead_lease_compute_and_commit_nothing() -> None:
    _, quiet, [(member, replica)] = replicas(1)
    batches = replica.batches()
    member.end(0.0)
    with pytest.raises(Crashed):
        replica.gradient(a_batch(), lambda _: None).send(None)
    with pytest.raises(Crashed):
        anext(batches).send(None)
    replica.commit(a_batch())
    assert quiet.told == []


def test_only_its_own_batches_are_computed() -> None:
    kernel, _, [(member, replica)] = replicas(1)

    class Foreign:
        samples = 3

    with pytest.raises(TypeError, match="expected a batch of this replica"):
        run(kernel, member, replica.gradient(Foreign(), lambda _: None))


def test_memory_per_worker_is_one_parameter_vector() -> None:
    _, _, made = replicas(3, a_job(model=lambda: nn.Linear(4, 2)))
    for _, replica in made:
        storages = {p.untyped_storage().data_ptr() for p in replica.replication.parameters}
        assert len(storages) == 1
        assert replica.replication.parameters[0].untyped_storage().nbytes() == 40
        assert replica.replication.buffers == []
        assert replica.parameters(0).dtype == torch.uint8
