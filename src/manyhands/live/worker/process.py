"""The process of one worker."""

from __future__ import annotations

import functools
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyhands.files.standard_streams import outlast_unwritable
from manyhands.live.assignment import Assignment, eager_limit
from manyhands.live.hosts.host_list import Hosts
from manyhands.live.member.group_notices import GroupNotices
from manyhands.live.member.heartbeat import LinkHeartbeat, end_with_threads
from manyhands.live.member.peer_calls import PeerCalls
from manyhands.live.member.progress import Progress
from manyhands.live.member.reporting import fail, listen_outside
from manyhands.live.processes.descriptors import raise_descriptors
from manyhands.live.processes.incarnation import incarnation
from manyhands.live.processes.parent_death import die_with
from manyhands.live.processes.supervision import FINISHED
from manyhands.live.worker.slowdown import Slowdown
from manyhands.pacing import factor
from manyhands.parameters.initial.trimming import keep_freed
from manyhands.script.origin import override
from manyhands.trace import Recorder, live_header
from manyhands.transport.listeners import endpoint
from manyhands.transport.reliable_channel import ReliableLine

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from manyhands.files.checkpoint import State
    from manyhands.job import Job
    from manyhands.live.worker.checkpoints.storing_plan import StoringPlan
    from manyhands.live.worker.trainer import Trainer
    from manyhands.strategies import Strategy
    from manyhands.transport.collectives import Group
    from manyhands.wire import Roll

JOIN_TIMEOUT = 600.0
"""Seconds in which all other workers must have joined."""


def main(path: str, rank: int) -> None:
    """Work on the assignment at `path` as worker `rank`, as a child of the agent."""
    assignment = Assignment.read(Path(path))
    outlast_unwritable()
    keep_freed()
    # SIGKILL, because a worker in a collective does not react to SIGTERM
    # (`docs/decisions/0008-processes.md`).
    die_with(assignment.agent, signal.SIGKILL)
    raise_descriptors()
    clock = time.monotonic
    head = live_header("worker", rank, clock=clock, wall=time.time, host=assignment.host)
    chunks, progress = list[bytes](), Progress()
    recorder = Recorder(head, chunks.append, clock)
    outside = listen_outside(assignment, rank) if assignment.peers else None
    address = endpoint(outside) if outside else ""
    connect = functools.partial(assignment.line, head.name)
    heartbeat = LinkHeartbeat(recorder, progress, clock, head, connect, chunks, address)
    if assignment.elastic:
        # Before the thread starts, whose first heartbeat has this worker's report.
        heartbeat.notices = GroupNotices(rank)
    # Before the thread starts: a worker whose heartbeat failed at once would go on unseen.
    end_with_threads(functools.partial(fail, heartbeat=heartbeat))
    heartbeat.start()
    try:
        _work(assignment, rank, recorder, progress, heartbeat, outside)
    except BaseException as error:  # noqa: BLE001 - every failure is reported to the agent
        fail(error, heartbeat)
    # Returns when the coordinator has the end of the trace; only then may the process end as
    # finished.
    heartbeat.stop()
    sys.exit(FINISHED)


def _work(
    assignment: Assignment,
    rank: int,
    recorder: Recorder,
    progress: Progress,
    heartbeat: LinkHeartbeat,
    outside: socket.socket | None,
) -> None:
    # Torch is imported after the first heartbeat, so that a slow start is seen as one.
    from manyhands.live.devices import take  # noqa: PLC0415
    from manyhands.script.loading import load  # noqa: PLC0415
    from manyhands.strategies import strategy  # noqa: PLC0415
    from manyhands.transport.collectives import Group, connect_store  # noqa: PLC0415

    job, loop = load(assignment.origin)
    job = override(job, assignment.overrides)
    progress.phase = "join"
    roll = heartbeat.roll(JOIN_TIMEOUT)
    progress.phase = "start"
    # A successor that has started when the others had finished finds no servers or peers any more.
    if roll.over:
        return
    if assignment.leasing is not None:
        if loop is not None:
            raise ValueError(f"{assignment.strategy} has its own training loop: omit loop=")
        _work_free(assignment, rank, job, roll, recorder, progress, heartbeat, outside)
        return
    if heartbeat.notices is not None:
        from manyhands.live.worker.lockstep.run import run_elastic  # noqa: PLC0415

        run_elastic(
            assignment,
            rank,
            job,
            loop or train_all,
            store_result,
            recorder,
            progress,
            heartbeat.notices,
            _storing(assignment, recorder),
        )
        return
    store = connect_store(assignment.store_address, assignment.store_port)
    device = take(assignment.device(rank))
    group = Group(
        store,
        rank,
        assignment.workers,
        epoch=roll.epoch,
        device=device,
        address=assignment.address,
    )
    run_loop(
        job,
        strategy(assignment.strategy),
        group,
        device,
        recorder,
        progress,
        loop,
        Path(assignment.folder),
        Slowdown(factor(assignment.slow, rank)),
        _storing(assignment, recorder),
    )
    group.close()


def _storing(assignment: Assignment, recorder: Recorder) -> StoringPlan:
    from manyhands.live.worker.checkpoints.storing_plan import StoringPlan  # noqa: PLC0415

    return StoringPlan(
        Path(assignment.storage or assignment.folder),
        assignment.strategy,
        assignment.attempt or str(assignment.agent),
        None if assignment.resume is None else Path(assignment.resume),
        _on_first_host(assignment),
        assignment.checkpoint_memory,
        assignment.generation,
        assignment.hosts,
        lambda samples, why: recorder.event("not stored", {"samples": str(samples), "words": why}),
    )


def _on_first_host(assignment: Assignment) -> tuple[str, ...]:
    """The processes that see the run's folder under a protocol; empty for all."""
    if not assignment.hosts:
        return ()
    here = Hosts(assignment.hosts).ranks(assignment.hosts[0][0])
    servers = range(len(assignment.servers))
    return (*(f"worker-{rank}" for rank in here), *(f"server-{number}" for number in servers))


def _work_free(
    assignment: Assignment,
    rank: int,
    job: Job,
    roll: Roll,
    recorder: Recorder,
    progress: Progress,
    heartbeat: LinkHeartbeat,
    outside: socket.socket | None,
) -> None:
    """Train under a protocol."""
    import torch  # noqa: PLC0415 - torch is imported late

    from manyhands.files.checkpoint import member_file, save_model  # noqa: PLC0415
    from manyhands.live.devices import take  # noqa: PLC0415
    from manyhands.live.member.shared_parameters import SharedParameters  # noqa: PLC0415
    from manyhands.live.worker.peer_server import PeerServer  # noqa: PLC0415
    from manyhands.live.worker.protocol_loop import run_free  # noqa: PLC0415
    from manyhands.parameters import Copy, counting_among  # noqa: PLC0415
    from manyhands.strategies import protocol_of, strategy  # noqa: PLC0415
    from manyhands.transport.caller import Caller  # noqa: PLC0415
    from manyhands.transport.shared.memory import Segment, can_share  # noqa: PLC0415

    protocol = protocol_of(strategy(assignment.strategy))
    if protocol is None:
        raise TypeError(f"{assignment.strategy} is not a protocol")
    needs = protocol.needs(assignment.workers)
    begun = time.monotonic()
    device = take(assignment.device(rank))
    segments: list[Segment] = []
    commons: list[SharedParameters] = []

    def allocate(size: int) -> torch.Tensor:
        if not can_share():
            return torch.zeros(size, dtype=torch.uint8)
        segments.append(Segment(size))
        return torch.frombuffer(segments[0].memory, dtype=torch.uint8)

    def home(size: int, fill: Callable[[torch.Tensor], None]) -> torch.Tensor:
        commons.append(SharedParameters(assignment, size, fill))
        return commons[0].parameters

    shared = home if needs.shared_memory else None
    clip = job.clip if needs.clips == "workers" else None
    copy = Copy(
        counting_among(job, protocol, assignment.workers),
        *(needs.shards, device, allocate, shared),
        beside=needs.own_parameters,
        clip=clip,
    )
    addresses = where_servers_are(assignment, roll)
    # The caller's name includes the incarnation, because a successor numbers its calls from one.
    caller = Caller(
        f"worker-{rank}.{incarnation()}",
        addresses,
        eager=eager_limit(assignment.workers),
        clock=time.monotonic,
        key=assignment.job_key(),
        segment=segments[0] if segments else None,
        own=f"server-{rank}" if needs.peer_servers else "",
    )
    caller.epoch = roll.epoch
    peer_server = peers = None
    if needs.peer_servers:
        peer_server = PeerServer(
            *(assignment, rank, job, heartbeat, recorder, outside),
            least=roll.epoch if roll.returns else 0,
        )
        peers = PeerCalls(
            *(caller, peer_server.notices, assignment.host),
            known=peer_server.about_others(roll.notices),
        )
        # Only when the notices of before its start are known to `peers`, which takes later ones
        # from it.
        peer_server.start()
    recorder.span("start", begun, time.monotonic() - begun, 0)
    with assignment.line(f"worker-{rank}.leases") as line:
        leases = ReliableLine(line, incarnation())
        replica = run_free(
            job,
            protocol,
            rank,
            assignment.workers,
            peers,
            copy,
            caller,
            leases,
            device,
            recorder,
            progress,
            commons[0].writes if commons and needs.local_optimizer else None,
            pacer=Slowdown(factor(assignment.slow, rank)),
            storing=_storing(assignment, recorder),
            returns=roll.returns,
        )
        progress.phase = "finish"
        if replica.stores:
            path = Path(assignment.folder) / member_file(0)
            recorder.event("parameters", {"sha256": save_model(copy.model, path)})
            replica.saved()
    if needs.ensemble and not replica.stores:
        save_model(copy.model, Path(assignment.folder) / member_file(rank))
    caller.close()
    if peer_server is not None:
        peer_server.stop()


def where_servers_are(assignment: Assignment, roll: Roll) -> dict[str, str]:
    """The address of every server; on this host, an ipc socket in the private folder."""
    here = {f"server-{number}": at for number, at in enumerate(assignment.servers)}
    return here | {name: at for name, host, at in roll.servers if host != assignment.host}


def run_loop(
    job: Job,
    strategy: Strategy,
    group: Group,
    device: Any,
    recorder: Recorder,
    progress: Progress,
    loop: Callable[[Trainer], object] | None,
    folder: Path,
    pacer: Slowdown,
    storing: StoringPlan | None = None,
) -> None:
    """Train as one member of `group`; the first worker stores the model."""
    from manyhands.live.worker.trainer import Trainer  # noqa: PLC0415 - torch is imported late
    from manyhands.strategies import placement_of  # noqa: PLC0415

    placement = placement_of(strategy)
    if placement is None:
        raise TypeError(
            f"{strategy} needs a coordinator, which torchrun does not start; use `manyhands train`"
        )
    begun = time.monotonic()
    about = (job, placement, group, device, recorder, progress, time.monotonic, pacer)
    trainer = Trainer(*about, storing=storing)
    recorder.span("start", begun, time.monotonic() - begun, 0)
    recorder.event("training")
    (loop or train_all)(trainer)
    # Before the state is gathered: storing the model does not count as training.
    recorder.event("trained")
    store_result(trainer, folder, recorder)


def store_result(trainer: Trainer, folder: Path, recorder: Recorder) -> None:
    """End training, and have the first worker store the model."""
    from manyhands.files.tensor_format import AVERAGE, MODEL  # noqa: PLC0415 - torch is imported late

    state = trainer.finish()

    def save() -> None:
        with trainer.averaged() as averaged:
            if averaged is not None:
                _store(averaged, folder / AVERAGE, trainer.rank)
        # The last file of a run: it has finished when this one exists.
        digest = _store(state, folder / MODEL, trainer.rank)
        if digest:
            recorder.event("parameters", {"sha256": digest})

    trainer.store(save)


def _store(state: State, path: Path, rank: int) -> str:
    """Have the first worker store a model; the others give their parts. Return its SHA-256."""
    if rank == 0:
        return state.save(path)
    for _ in state.fetch():
        pass
    return ""


def train_all(trainer: Trainer) -> None:
    """The default training loop."""
    for batch in trainer.batches():
        trainer.step(batch)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
