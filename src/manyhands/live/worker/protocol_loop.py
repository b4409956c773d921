"""A worker that runs free: it leases samples, and meets the others through servers."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import torch

from manyhands.endpoint import MembershipChanged, Parameters, Pull
from manyhands.live.worker.endpoint import LiveEndpoint
from manyhands.live.worker.replica import LiveReplica
from manyhands.sampling.permutation import mix
from manyhands.seeding import seed_all

if TYPE_CHECKING:
    from collections.abc import Container, Coroutine

    from manyhands.job import Job
    from manyhands.live.member.progress import Progress
    from manyhands.live.worker.slowdown import Slowdown
    from manyhands.parameters import Copy, UpdateCounts
    from manyhands.protocols import StrategyProtocol
    from manyhands.trace import Recorder
    from manyhands.transport.caller import Caller
    from manyhands.transport.reliable_channel import ReliableLine


_SOON = 0.02
"""Seconds until a replica is asked for again that was not laid open yet."""


def drive(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a protocol's coroutine: live it never suspends, because it waits in the transport."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    coroutine.close()
    raise RuntimeError("a protocol awaited something that is neither its endpoint nor its replica")


async def _hear_members(
    replica: LiveReplica, endpoint: LiveEndpoint, heard: list[torch.Tensor]
) -> None:
    """Pull the replica of every worker that is there, as of this evaluation.

    Each worker lays its replica open once per evaluation, so a version that is behind this
    worker's own is from the evaluation before: its owner is about to lay the present one open.
    """
    own = replica.servers[replica.rank]
    present = 0
    for name in (own, *(other for other in replica.servers if other != own)):
        room = torch.empty_like(replica.parameters(0))
        with contextlib.suppress(MembershipChanged):
            while endpoint.reaches(name):
                endpoint.post(name, Pull(), into=room)
                said = await endpoint.receive(name)
                if isinstance(said, Parameters) and said.version >= present:
                    present = max(present, said.version if name == own else 0)
                    heard.append(room)
                    break
                time.sleep(_SOON)


def run_free(
    job: Job,
    protocol: StrategyProtocol,
    rank: int,
    workers: int,
    gone: Container[str],
    copy: Copy,
    caller: Caller,
    line: ReliableLine,
    device: torch.device,
    recorder: Recorder,
    progress: Progress,
    writes: UpdateCounts | None = None,
    *,
    pacer: Slowdown,
) -> LiveReplica:
    """Work under a protocol until the run is over; the replica, at the shared state."""
    seed_all(mix(job.seed, 1, rank))
    seed = mix(job.seed, 2, rank)
    endpoint = LiveEndpoint(f"worker-{rank}", seed, caller, gone, recorder, progress)
    replica = LiveReplica(
        job, protocol, rank, workers, copy, line, device, recorder, progress, writes, pacer
    )

    async def refresh() -> None:
        await protocol.refresh(replica, endpoint)

    async def stand_by() -> None:
        await protocol.stand_by(replica, endpoint)

    def hear_members() -> list[torch.Tensor]:
        heard: list[torch.Tensor] = []
        drive(_hear_members(replica, endpoint, heard))
        return heard

    replica.refresh = lambda: drive(refresh())
    replica.stand_by = lambda: drive(stand_by())
    replica.hear_members = hear_members
    recorder.event("training")
    drive(protocol.worker(replica, endpoint))
    replica.close()
    recorder.event("trained")
    recorder.traffic(sent=caller.sent, received=caller.received)
    if replica.stores:
        replica.refresh()
        replica.adopt()
        replica.check_finite()
    return replica
