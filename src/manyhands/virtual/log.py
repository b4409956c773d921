"""Traces of a virtual run: like those of a live run, in bounded volume.

The first `FULL` workers have a trace each. All other workers share one, whose sums are exact and
whose steps are the updates of all of them, thinned like every trace. Traces are independent of the
machine, so that the same run has the same trace everywhere: hosts are virtual, process ids are 0,
and the wall clock starts at 0.
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
"""Number of workers that have their own trace."""
_OTHERS_STEPS = 256
"""Recorded updates in the shared trace before it is thinned."""


class WorkerLog:
    """Trace of one incarnation of a worker, or of all workers that share a trace."""

    def __init__(self, recorder: Recorder, kernel: Kernel) -> None:
        self.recorder = recorder
        self._kernel = kernel
        self._step = 0
        self._samples = 0
        self._sent: dict[str, int] = {}
        self._received: dict[str, int] = {}

    def span(self, kind: Kind, begun: float) -> None:
        """Record a span from `begun` until now; none if no time has passed."""
        self.time(kind, begun, self._kernel.now - begun)

    def time(self, kind: Kind, begun: float, seconds: float) -> None:
        """Record a span of `seconds` from `begun`; none if no time has passed."""
        if seconds > 0:
            self.recorder.span(kind, begun, seconds, self._step)

    def sent(self, server: str, nbytes: int) -> None:
        """Bytes went out."""
        self._sent[server] = self._sent.get(server, 0) + nbytes

    def received(self, server: str, nbytes: int) -> None:
        """Bytes came in."""
        self._received[server] = self._received.get(server, 0) + nbytes

    def loss(self, value: float, samples: int) -> None:
        """Record the loss of a batch."""
        self._samples += samples
        self.recorder.point("loss", value, samples=self._samples, weight=samples)

    def staleness(self, versions: int, worker: str) -> None:
        """Record the staleness of an applied update."""
        self.recorder.staleness(versions, worker)

    def next_step(self) -> None:
        """Begin the next step of the trace."""
        self._step += 1

    def committed(self, samples: int) -> None:
        """Record committed samples."""
        self.recorder.count(samples=samples, steps=1)

    def settle(self) -> None:
        """Hand the counted bytes to the trace."""
        if self._sent or self._received:
            self.recorder.count(sent=self._sent, received=self._received)
            self._sent, self._received = {}, {}


class ServerLog:
    """Trace of one server, over all of its incarnations."""

    def __init__(self, recorder: Recorder, peer: Callable[[str], str], kernel: Kernel) -> None:
        self.recorder = recorder
        self._peer = peer
        self._kernel = kernel
        self._sent: dict[str, int] = {}
        self._received: dict[str, int] = {}

    def span(self, kind: Kind, begun: float, version: int) -> None:
        """Record a span from `begun` until now."""
        self.recorder.span(kind, begun, self._kernel.now - begun, version)

    def sent(self, worker: str, nbytes: int) -> None:
        """Bytes went out."""
        self._sent[worker] = self._sent.get(worker, 0) + nbytes

    def received(self, worker: str, nbytes: int) -> None:
        """Bytes came in."""
        self._received[worker] = self._received.get(worker, 0) + nbytes

    def staleness(self, versions: int, worker: str) -> None:
        """Record the staleness of an applied update."""
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
        folder: the run's folder.
        workers: number of workers.
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
        """The log of a new incarnation of a worker; the one before is closed."""
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
        """Write the last sums of a worker that has ended."""
        log = self._lives.pop(rank, None)
        if log is not None:
            log.settle()
            log.recorder.flush()

    def drain(self) -> None:
        """Write pending records; called by the count of updates, never by the real clock."""
        for log in self._all():
            log.settle()
            log.recorder.drain()
        self.coordinator.drain()

    def flush(self) -> None:
        """Write everything at the end of the run."""
        for log in self._all():
            log.settle()
            log.recorder.flush()
        self.coordinator.flush()

    def _all(self) -> list[WorkerLog | ServerLog]:
        others = [] if self._others is None else [self._others]
        return [*self._servers, *self._lives.values(), *others]

    def _peer(self, worker: str) -> str:
        """The name of the trace that contains a worker's records."""
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
        """A function that appends to the trace file of that name."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{name}.jsonl"

        def write(lines: bytes) -> None:
            with path.open("ab") as file:
                file.write(lines)

        return write
