"""Training loop of a worker under a protocol: leases samples, exchanges updates with servers."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import torch

from manyhands.endpoint import MembershipChanged, Parameters, Pull
from manyhands.live.worker.checkpoints.leased import LeasedCheckpoints
from manyhands.live.worker.endpoint import LiveEndpoint
from manyhands.live.worker.replica import LiveReplica
from manyhands.protocols.compression.making import with_codecs
from manyhands.sampling.permutation import mix
from manyhands.seeding import seed_all

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from manyhands.endpoint import Endpoint, Said
    from manyhands.job import Job
    from manyhands.live.member.peer_calls import PeerCalls
    from manyhands.live.member.progress import Progress
    from manyhands.live.worker.checkpoints.storing_plan import StoringPlan
    from manyhands.live.worker.slowdown import Slowdown
    from manyhands.parameters import Copy, UpdateCounts
    from manyhands.protocols import StrategyProtocol
    from manyhands.trace import Recorder
    from manyhands.transport.caller import Caller
    from manyhands.transport.reliable_channel import ReliableLine


_SOON = 0.02
"""Seconds until a replica is requested again that was not published yet."""


def drive(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a protocol's coroutine; live it never suspends, because the transport blocks."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    coroutine.close()
    raise RuntimeError("a protocol awaited something that is neither its endpoint nor its replica")


async def _pull_members(
    replica: LiveReplica, endpoint: Endpoint, pulled: list[torch.Tensor]
) -> None:
    """Pull the replica of every present worker for this evaluation.

    Each worker publishes its replica once per evaluation, so a version that is behind this
    worker's own is from the previous evaluation: its owner is about to publish the current one.
    """
    own = replica.servers[replica.rank]
    present = 0
    for name in (own, *(other for other in replica.servers if other != own)):
        room = torch.empty_like(replica.parameters(0))
        with contextlib.suppress(MembershipChanged):
            while endpoint.reaches(name):
                endpoint.post(name, Pull(), into=room)
                answer = await endpoint.receive(name)
                if isinstance(answer, Parameters) and answer.version >= present:
                    present = max(present, answer.version if name == own else 0)
                    pulled.append(room)
                    break
                time.sleep(_SOON)


def run_free(
    job: Job,
    protocol: StrategyProtocol,
    rank: int,
    workers: int,
    peers: PeerCalls | None,
    copy: Copy,
    caller: Caller,
    line: ReliableLine,
    device: torch.device,
    recorder: Recorder,
    progress: Progress,
    writes: UpdateCounts | None = None,
    *,
    pacer: Slowdown,
    storing: StoringPlan | None = None,
    returns: bool = False,
) -> LiveReplica:
    """Train under a protocol until the run is over; return the replica, at the shared state."""
    seed_all(mix(job.seed, 1, rank))
    seed = mix(job.seed, 2, rank)
    sender = LiveEndpoint(f"worker-{rank}", seed, caller, peers, recorder, progress)
    coded = with_codecs(sender, protocol, rank, workers, copy.layout, job.seed, sender.note_coding)
    endpoint: Endpoint = coded or sender
    if coded is not None:
        sender.residual = coded.residuals
        if peers is not None:
            peers.on_loss = coded.lose
    replica = LiveReplica(
        job, protocol, rank, workers, copy, line, device, recorder, progress, writes, pacer
    )

    replica.returns = returns

    async def refresh() -> None:
        await protocol.refresh(replica, endpoint)

    async def stand_by() -> None:
        await protocol.stand_by(replica, endpoint)

    def pull_members() -> list[torch.Tensor]:
        pulled: list[torch.Tensor] = []
        drive(_pull_members(replica, endpoint, pulled))
        return pulled

    replica.refresh = lambda: drive(refresh())
    replica.stand_by = lambda: drive(stand_by())
    replica.pull_members = pull_members
    replica.enter = sender.enter
    replica.coding = lambda: sender.coding
    begun = time.monotonic()

    async def call(name: str, message: Said) -> None:
        sender.post(name, message)
        await sender.receive(name)

    if storing is not None and (job.checkpoint_on_disk is not None or storing.resume is not None):
        replica.checkpoints = LeasedCheckpoints(
            *(storing, job, protocol.needs(workers), rank, workers, copy),
            *(replica.own_parts, coded, device),
            lambda name, message: drive(call(name, message)),
            lambda: time.monotonic() - begun,
        )
    recorder.event("training")
    drive(protocol.worker(replica, endpoint))
    replica.close()
    if replica.checkpoints is not None:
        replica.checkpoints.close()
    sender.note_residual("residual/end")
    replica.settle()
    recorder.event("trained")
    if replica.stores:
        replica.refresh()
        replica.adopt()
        replica.check_finite()
    caller.traffic.hand_to(recorder)
    return replica
