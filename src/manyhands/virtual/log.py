"""Traces of a virtual run: like those of a live run, in bounded volume.

The first `FULL` workers have a trace each. All other workers share one, whose sums are exact and
whose steps are the updates of all of them, thinned like every trace. Traces are independent of the
machine, so that the same run has the same trace everywhere: hosts are virtual, process ids are 0,
and the wall clock starts at 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.trace import Header, NotApplied, Recorder, TrafficCount

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
        self.not_applied = NotApplied(recorder)
        self._kernel = kernel
        self._step = 0
        self._samples = 0
        self.traffic = TrafficCount()
        self._commits = self._committed = 0
        """Number of commits, and of their samples, that are not in the trace yet."""
        self.residual: Callable[[], float] = lambda: 0.0
        """The norm of what codecs have not sent, if the trace is of one worker."""

    def note_residual(self, name: str = "residual") -> None:
        """Record the norm of what codecs have not sent, if there is anything."""
        norm = self.residual()
        if norm:
            self.recorder.point(name, norm, samples=self._samples)

    def span(self, kind: Kind, begun: float) -> None:
        """Record a span from `begun` until now; none if no time has passed."""
        self.time(kind, begun, self._kernel.now - begun)

    def time(self, kind: Kind, begun: float, seconds: float) -> None:
        """Record a span of `seconds` from `begun`; none if no time has passed."""
        if seconds > 0:
            self.recorder.span(kind, begun, seconds, self._step)

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
        """Count committed samples."""
        self._commits += 1
        self._committed += samples

    def settle(self) -> None:
        """Hand the counted samples and bytes to the trace."""
        self.traffic.hand_to(self.recorder)
        if self._commits:
            self.recorder.count(samples=self._committed, steps=self._commits)
            self._commits = self._committed = 0


class ServerLog:
    """Trace of one server, over all of its incarnations."""

    def __init__(self, recorder: Recorder, peer: Callable[[str], str], kernel: Kernel) -> None:
        self.recorder = recorder
        self.not_applied = NotApplied(recorder)
        self.peer = peer
        """The name of the trace that contains a worker's records."""
        self._kernel = kernel
        self.traffic = TrafficCount()
        self._own = self.traffic

    def count_in(self, worker: WorkerLog) -> None:
        """Count bytes in a worker's trace: this server is in its process."""
        self.traffic = worker.traffic

    def span(self, kind: Kind, begun: float, version: int) -> None:
        """Record a span from `begun` until now."""
        self.recorder.span(kind, begun, self._kernel.now - begun, version)

    def staleness(self, versions: int, worker: str) -> None:
        """Record the staleness of an applied update."""
        self.recorder.staleness(versions, worker)

    def settle(self) -> None:
        """Hand the counted bytes to the trace."""
        self._own.hand_to(self.recorder)


class Logs:
    """All traces of one run.

    Args:
        folder: the run's folder.
        workers: number of workers.
        kernel: the clock.
        follows_staleness: whether the staleness of updates is recorded over time.
    """

    def __init__(
        self, folder: Path, workers: int, kernel: Kernel, *, follows_staleness: bool = False
    ) -> None:
        self._folder = folder / "trace"
        self._kernel = kernel
        self._workers = workers
        self._follows_staleness = follows_staleness
        self._lives: dict[int, WorkerLog] = {}
        self._others: WorkerLog | None = None
        self._servers: list[ServerLog] = []
        self._others_name = f"workers-{FULL}-{workers - 1}"
        self._own_trace = frozenset(f"worker-{rank}" for rank in range(FULL))
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

    def follow_residual(self, rank: int, norm: Callable[[], float]) -> None:
        """Record what codecs have not sent, of a worker that has a trace of its own."""
        if rank in self._lives:
            self._lives[rank].residual = norm

    def end(self, rank: int) -> None:
        """Record that a worker has trained to the end."""
        log = self._lives.get(rank)
        if log is not None:
            log.note_residual("residual/end")

    def close(self, rank: int) -> None:
        """Write the last sums of a worker that has ended."""
        log = self._lives.pop(rank, None)
        if log is not None:
            log.note_residual()
            log.settle()
            log.not_applied.settle()
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
            log.not_applied.settle()
            log.recorder.flush()
        self.coordinator.flush()

    def _all(self) -> list[WorkerLog | ServerLog]:
        others = [] if self._others is None else [self._others]
        return [*self._servers, *self._lives.values(), *others]

    def _peer(self, worker: str) -> str:
        """The name of the trace that contains a worker's records."""
        return worker if worker in self._own_trace else self._others_name

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
        recorder = Recorder(header, self._sink(name), lambda: self._kernel.now, full_steps)
        recorder.follows_staleness = self._follows_staleness
        return recorder

    def _sink(self, name: str) -> Callable[[bytes], object]:
        """A function that appends to the trace file of that name."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{name}.jsonl"

        def write(lines: bytes) -> None:
            with path.open("ab") as file:
                file.write(lines)

        return write
