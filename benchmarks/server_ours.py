"""Our side of the exchange in `benchmarks.server`: the real server loop and the real messenger."""

import os
import signal
import time
from pathlib import Path

import torch

from benchmarks.peers.work import BATCH, WORKERS
from benchmarks.turnstile import Turnstile
from manyhands.endpoint import Push
from manyhands.live.assignment import Assignment, eager_limit
from manyhands.live.member.heartbeat import FileHeartbeat
from manyhands.live.member.progress import Progress
from manyhands.live.processes.parent_death import die_with
from manyhands.live.server import shard_server
from manyhands.parameters import Copy, Layout
from manyhands.parameters.initial.shard_values import make
from manyhands.script.loading import load
from manyhands.script.origin import Origin, Overrides
from manyhands.trace import Recorder, live_header
from manyhands.transport.caller import Caller
from manyhands.transport.shared.memory import Segment, reserve

_JOB = Path(__file__).with_name("server_job.py")


def assign(folder: Path, servers: int, durability: str = "process") -> Assignment:
    """A run of `server_job`, without anybody but its servers and workers."""
    return Assignment(
        origin=Origin(str(_JOB), "benchmarks", "", (str(_JOB),), "job", None),
        overrides=Overrides(durability=durability),
        strategy=f"asynchronous(servers={servers})",
        workers=WORKERS,
        host="localhost",
        folder=str(folder),
        coordinator="",
        private=str(folder),
        store_address="",
        store_port=0,
        servers=tuple(f"ipc://{folder}/server-{number}" for number in range(servers)),
        leasing=None,
        agent=os.getpid(),
        devices=("cpu",) * WORKERS,
        journals=tuple(reserve() for _ in range(servers)),
    )


def elements(assignment: Assignment) -> list[int]:
    """How many parameters each server holds."""
    job, _ = load(assignment.origin)
    shards = Layout.of(*make(job), len(assignment.servers)).shards
    return [shard.nbytes // torch.float32.itemsize for shard in shards]


class _Heartbeat(FileHeartbeat):
    """Drains the trace every second, as a server's second thread does; never dismisses."""

    dismissed = False

    def take_fenced(self) -> list[str]:
        """Nobody."""
        return []


def serve(assignment: Assignment, number: int) -> None:
    """A server, for ever."""
    die_with(assignment.agent, signal.SIGKILL)
    torch.set_num_threads(1)
    progress = Progress()
    header = live_header("server", number, clock=time.monotonic, wall=time.time)
    recorder = Recorder(header, lambda _: None, time.monotonic)
    heartbeat = _Heartbeat(recorder, progress, time.monotonic)
    heartbeat.start()
    shard_server.ShardServer(assignment, number, recorder, progress).until_dismissed(heartbeat)


def work(assignment: Assignment, rank: int, path: str, shares: bool) -> None:
    """Push a gradient to every server and pull, whenever it is this side's turn."""
    die_with(assignment.agent, signal.SIGKILL)
    torch.set_num_threads(1)
    job, _ = load(assignment.origin)
    names = [f"server-{number}" for number in range(len(assignment.servers))]
    segments: list[Segment] = []

    def allocate(size: int) -> torch.Tensor:
        segments.append(Segment(size))
        return torch.frombuffer(segments[0].memory, dtype=torch.uint8)

    copy = Copy(job, len(names), torch.device("cpu"), allocate if shares else None)
    for update in copy.updates:
        update.view(torch.float32).fill_(1e-6)
    updates = [update.numpy().data for update in copy.updates]
    parameters = [parameter.numpy().data for parameter in copy.parameters]
    caller = Caller(
        f"worker-{rank}.{os.getpid()}",
        dict(zip(names, assignment.servers, strict=True)),
        eager=eager_limit(WORKERS),
        clock=time.monotonic,
        segment=segments[0] if segments else None,
    )
    read = [0] * len(names)
    turnstile = Turnstile(path)
    while turnstile.step():
        for number, name in enumerate(names):
            caller.post(name, Push(read[number], BATCH), updates[number], parameters[number])
        for number, name in enumerate(names):
            read[number] = caller.receive(name).version
    caller.close()
