"""What a virtual run writes down: a trace like a live one's, in bounded volume.

The first `FULL` workers have a trace each. All the others share one, whose sums are exact and
whose steps are the updates of all of them together, thinned as every trace is. Nothing of the
machine is in it, so that the same run has the same trace everywhere: hosts are virtual, process
ids are 0, and the wall clock starts at 0 with the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.trace import Header, Recorder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from manyhands.trace import Kind
    from manyhands.virtual.simulator.kernel import Kernel
    from manyhands.virtual.simulator.member import VirtualProcess

FULL = 64
"""Workers with a trace of their own."""
_OTHERS_STEPS = 256
"""Of the updates of the others together, how many are recorded before they are thinned."""


class WorkerLog:
    """The trace of one life of a worker, or of all workers that have none of their own."""

    def __init__(self, recorder: Recorder, kernel: Kernel) -> None:
        self.recorder = recorder
        self._kernel = kernel
        self._step = 0
        self._samples = 0
        self._sent: dict[str, int] = {}
        self._received: dict[str, int] = {}

    def span(self, kind: Kind, begun: float) -> None:
        """From `begun` until now; nothing if no time has passed."""
        self.time(kind, begun, self._kernel.now - begun)

    def time(self, kind: Kind, begun: float, seconds: float) -> None:
        """So long from `begun`; nothing if no time has passed."""
        if seconds > 0:
            self.recorder.span(kind, begun, seconds, self._step)

    def sent(self, server: str, nbytes: int) -> None:
        """Bytes went out."""
        self._sent[server] = self._sent.get(server, 0) + nbytes

    def received(self, server: str, nbytes: int) -> None:
        """Bytes came in."""
        self._received[server] = self._received.get(server, 0) + nbytes

    def loss(self, value: float, samples: int) -> None:
        """The loss of a batch of so many samples."""
        self._samples += samples
        self.recorder.point("loss", value, samples=self._samples, weight=samples)

    def staleness(self, versions: int, worker: str) -> None:
        """An update that a worker computed was applied."""
        self.recorder.staleness(versions, worker)

    def next_step(self) -> None:
        """What is noted from now on belongs to another batch."""
        self._step += 1

    def committed(self, samples: int) -> None:
        """What came of a batch is part of the shared state."""
        self.recorder.count(samples=samples, steps=1)

    def settle(self) -> None:
        """Hand the counted bytes to the trace."""
        if self._sent or self._received:
            self.recorder.count(sent=self._sent, received=self._received)
            self._sent, self._received = {}, {}


class ServerLog:
    """The trace of one server, over all of its lives."""

    def __init__(self, recorder: Recorder, peer: Callable[[str], str], kernel: Kernel) -> None:
        self.recorder = recorder
        self._peer = peer
        self._kernel = kernel
        self._sent: dict[str, int] = {}
        self._received: dict[str, int] = {}

    def span(self, kind: Kind, begun: float, version: int) -> None:
        """From `begun` until now."""
        self.recorder.span(kind, begun, self._kernel.now - begun, version)

    def sent(self, worker: str, nbytes: int) -> None:
        """Bytes went out."""
        self._sent[worker] = self._sent.get(worker, 0) + nbytes

    def received(self, worker: str, nbytes: int) -> None:
        """Bytes came in."""
        self._received[worker] = self._received.get(worker, 0) + nbytes

    def staleness(self, versions: int, worker: str) -> None:
        """An update of a worker was applied."""
        self.recorder.staleness(versions, worker)

    def settle(self) -> None:
        """Hand the counted bytes to the trace."""
        sent, received = self._by_trace(self._sent), self._by_trace(self._received)
        self.recorder.count(sent=sent, received=received)
        self._sent, self._received = {}, {}

    def _by_trace(self, by_worker: dict[str, int]) -> dict[str, int]:
        total: dict[str, int] = {}
        for worker, nbytes in by_worker.items():
            peer = self._peer(worker)
            total[peer] = total.get(peer, 0) + nbytes
        return total


class Logs:
    """All traces of one run.

    Args:
        folder: the run's.
        workers: how many there are.
        kernel: the clock.
    """

    def __init__(self, folder: Path, workers: int, kernel: Kernel) -> None:
        self._folder = folder / "trace"
        self._kernel = kernel
        self._workers = workers
        self._lives: dict[int, WorkerLog] = {}
        self._others: WorkerLog | None = None
        self._servers: list[ServerLog] = []
        self._others_name = f"workers-{FULL}-{workers - 1}"
        self.coordinator = self._recorder("coordinator", 0, "", "coordinator")

    def worker(self, member: VirtualProcess, rank: int) -> WorkerLog:
        """The log for a new life of a worker; that of the life before is closed."""
        if rank < FULL:
            self.close(rank)
            recorder = self._recorder("worker", rank, member.host, member.name)
            self._lives[rank] = WorkerLog(recorder, self._kernel)
            return self._lives[rank]
        if self._others is None:
            name = self._others_name
            recorder = self._recorder("worker", FULL, member.host, name, _OTHERS_STEPS)
            self._others = WorkerLog(recorder, self._kernel)
        return self._others

    def server(self, member: VirtualProcess, number: int) -> ServerLog:
        """The log of a server."""
        recorder = self._recorder("server", number, member.host, member.name)
        self._servers.append(ServerLog(recorder, self._peer, self._kernel))
        return self._servers[-1]

    def close(self, rank: int) -> None:
        """A worker's life is over: write its last sums."""
        log = self._lives.pop(rank, None)
        if log is not None:
            log.settle()
            log.recorder.flush()

    def drain(self) -> None:
        """Write what is pending; called by the count of updates, never by the machine's clock."""
        for log in self._all():
            log.settle()
            log.recorder.drain()
        self.coordinator.drain()

    def flush(self) -> None:
        """Write everything: the run is over."""
        for log in self._all():
            log.settle()
            log.recorder.flush()
        self.coordinator.flush()

    def _all(self) -> list[WorkerLog | ServerLog]:
        others = [] if self._others is None else [self._others]
        return [*self._servers, *self._lives.values(), *others]

    def _peer(self, worker: str) -> str:
        """The trace that a worker's doings are in."""
        return worker if int(worker.rpartition("-")[2]) < FULL else self._others_name

    def _recorder(
        self, role: str, rank: int, host: str, name: str, full_steps: int = 2000
    ) -> Recorder:
        header = Header(
            role=role,
            rank=rank,
            host=host,
            pid=0,
            boot="virtual",
            clock=self._kernel.now,
            wall=self._kernel.now,
            kind="virtual",
        )
        return Recorder(header, self._sink(name), lambda: self._kernel.now, full_steps)

    def _sink(self, name: str) -> Callable[[bytes], object]:
        """Where the trace of that name goes."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{name}.jsonl"

        def write(lines: bytes) -> None:
            with path.open("ab") as file:
                file.write(lines)

        return write
