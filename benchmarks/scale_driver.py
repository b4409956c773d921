"""Light workers of `benchmarks.scale`: many in one process, without torch.

Each is a thread with the real lease conversation and the real messenger: it asks for a lease,
pushes an update to every server, receives the new parameters and commits. It computes nothing. One
more thread sends all their heartbeats and traces, once a second each, as a worker's own pulse does.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import zmq

from manyhands.endpoint import Pull, Push
from manyhands.live.assignment import Assignment, eager_limit
from manyhands.live.processes.descriptors import raise_descriptors
from manyhands.live.processes.parent_death import die_with
from manyhands.trace import Recorder, live_header
from manyhands.transport.caller import Caller
from manyhands.transport.control import Line
from manyhands.transport.reliable_channel import ReliableLine
from manyhands.wire import Beat, Goodbye, Hello, Roll, TraceChunk
from manyhands.wire.leasing import Ask, Commit, Enough, Granted, Over, Saved

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manyhands.endpoint import Said
    from manyhands.wire.leasing import Leasing

LEASES, BEATS, CHUNKS, STOP = range(4)
"""What is counted of each worker; in the row of the first, whether it is enough."""

_INCARNATION = 1
"""None of them is ever started again."""


def counts_of(path: Path, workers: int) -> np.memmap[Any, Any]:
    """What the workers have done, where all processes see it."""
    return np.memmap(path, dtype=np.int64, mode="r+", shape=(workers, 4))


class LightWorker(threading.Thread):
    """A worker that computes nothing."""

    def __init__(
        self,
        assignment: Assignment,
        rank: int,
        sizes: Sequence[int],
        context: zmq.Context[Any],
        counts: np.memmap[Any, Any],
    ) -> None:
        super().__init__(name=f"worker-{rank}", daemon=True)
        self.rank = rank
        self.begin = threading.Event()
        self.chunks: list[bytes] = []
        head = functools.partial(live_header, clock=time.monotonic, wall=time.time)
        self.header = head("worker", rank, host=assignment.host)
        self.recorder = Recorder(self.header, self.chunks.append, time.monotonic)
        self.step = 0
        self._assignment = assignment
        self._sizes = sizes
        self._context = context
        self._counts = counts
        self._words: list[Leasing] = []

    def run(self) -> None:
        """Lease, push, commit until there is no more."""
        self.begin.wait()
        names = [f"server-{number}" for number in range(len(self._sizes))]
        caller = Caller(
            f"{self.name}.{os.getpid()}",
            dict(zip(names, self._assignment.servers, strict=True)),
            eager=eager_limit(self._assignment.workers),
            clock=time.monotonic,
            context=self._context,
        )
        updates = [
            memoryview(np.full(size // 4, 1e-6, np.float32)).cast("B") for size in self._sizes
        ]
        rooms = [memoryview(bytearray(size)) for size in self._sizes]
        address = self._assignment.coordinator
        line = Line(address, f"{self.name}.leases", context=self._context)
        leases = ReliableLine(line, _INCARNATION)
        calls: list[tuple[Said, memoryview | None]] = [(Pull(), None)] * len(names)
        self._exchange(caller, names, calls, rooms)
        leases.send(Ask())
        while isinstance(lease := self._receive(leases), Granted):
            leases.send(Ask())
            samples = lease.stop - lease.start
            calls = [
                (Push(version, samples, lease.dealt), update)
                for version, update in zip(self._versions, updates, strict=True)
            ]
            self._exchange(caller, names, calls, rooms)
            leases.send(Commit(lease.number), later=True)
            self.recorder.count(samples=samples, steps=1)
            self.step += 1
            self._counts[self.rank, LEASES] += 1
            if self.rank == 0 and self._counts[0, STOP]:
                leases.send(Enough())
        if isinstance(lease, Over) and lease.stores:
            # There is no model to store here, but the others wait until it is.
            leases.send(Saved())
            self._receive(leases)
        caller.traffic.hand_to(self.recorder)
        line.close(linger=5.0)
        caller.close()

    def _exchange(
        self,
        caller: Caller,
        names: Sequence[str],
        calls: Sequence[tuple[Said, memoryview | None]],
        rooms: Sequence[memoryview],
    ) -> None:
        """Call all servers, and have all their answers."""
        begun = time.monotonic()
        for name, (message, payload), room in zip(names, calls, rooms, strict=True):
            caller.post(name, message, payload, room)
        sent = time.monotonic()
        self.recorder.span("send", begun, sent - begun, self.step)
        answers: list[Any] = [caller.receive(name) for name in names]
        self.recorder.span("receive", sent, time.monotonic() - sent, self.step)
        self._versions = [answer.version for answer in answers]

    def _receive(self, leases: ReliableLine) -> Leasing:
        while True:
            while not self._words:
                self._words += leases.receive(1.0)
            word = self._words.pop(0)
            if isinstance(word, Granted | Over):
                return word


def beat(
    workers: Sequence[LightWorker], lines: Sequence[Line], counts: np.memmap[Any, Any]
) -> None:
    """Send every worker's heartbeat and trace once a second until all of them are done."""
    waiting = {worker.rank for worker in workers}
    while any(worker.is_alive() for worker in workers):
        due = time.monotonic()
        for number, (worker, line) in enumerate(zip(workers, lines, strict=True)):
            # Spread over the second, as the pulses of processes are.
            time.sleep(max(0.0, due + number / len(workers) - time.monotonic()))
            heard = line.receive(0)
            if worker.rank in waiting and any(isinstance(message, Roll) for message in heard):
                waiting.discard(worker.rank)
                worker.begin.set()
            worker.recorder.drain()
            tell(worker, line, counts)
            line.send(Beat(time.monotonic(), worker.step, worker.step, None, "receive", "nowhere"))
            counts[worker.rank, BEATS] += 1
        time.sleep(max(0.0, due + 1.0 - time.monotonic()))
    for worker, line in zip(workers, lines, strict=True):
        worker.recorder.flush()
        tell(worker, line, counts)
        line.send(Goodbye(worker.step, worker.step))


def tell(worker: LightWorker, line: Line, counts: np.memmap[Any, Any]) -> None:
    """Send what is new of a worker's trace."""
    chunks = [*worker.chunks]
    del worker.chunks[: len(chunks)]
    if chunks:
        line.send(TraceChunk(b"".join(chunks)))
        counts[worker.rank, CHUNKS] += 1


def main(path: str, first: int, count: int, *sizes: int) -> None:
    """Drive workers `first` to `first + count − 1` of the assignment at `path`."""
    assignment = Assignment.read(Path(path))
    die_with(assignment.agent, signal.SIGKILL)
    raise_descriptors()
    threading.stack_size(256 * 1024)
    context: zmq.Context[Any] = zmq.Context()
    context.set(zmq.MAX_SOCKETS, count * (len(sizes) + 2) + 64)
    counts = counts_of(Path(assignment.private) / "counts", assignment.workers)
    ranks = range(first, first + count)
    workers = [LightWorker(assignment, rank, sizes, context, counts) for rank in ranks]
    lines = [Line(assignment.coordinator, worker.name, context=context) for worker in workers]
    for worker, line in zip(workers, lines, strict=True):
        head = worker.header
        line.send(Hello(head.role, head.rank, head.host, head.pid, head.boot, life=_INCARNATION))
        worker.start()
    beat(workers, lines, counts)
    for line in lines:
        line.close(linger=5.0)
    context.term()


if __name__ == "__main__":
    main(sys.argv[1], *(int(number) for number in sys.argv[2:]))
