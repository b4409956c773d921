"""Link of a joined host's agent to the coordinator: heartbeats, ends of workers and model files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from manyhands.failure import RunFailed
from manyhands.trace import Recorder, estimate_offset, live_header
from manyhands.wire import Beat, Goodbye, Pong, TraceChunk
from manyhands.wire.joining import Ended, Part, Stored

if TYPE_CHECKING:
    from collections.abc import Iterable

    from manyhands.live.assignment import Assignment
    from manyhands.live.processes.supervision import Exit, Process
    from manyhands.transport.control import WatchedLine
    from manyhands.wire import Control

_INTERVAL = 1.0
"""Seconds between heartbeats."""
_SILENCE = 15.0
"""Seconds without a message from the first host after which it counts as lost."""
_CUT = 10.0
"""The same while there is no connection; longer than the restart of a coordinator takes."""
_STOPPED = 3.0
"""Seconds between two heartbeats after which this process was stopped itself, and heard nothing."""
_PIECE = 512 * 1024
_REPORT = 256 * 1024
_EXCHANGES = 64


class FirstHostLost(RunFailed):
    """There was no message from the first host for so long that it counts as lost.

    Args:
        words: the message.
        assignment: the assignment of the host that noticed it.
    """

    def __init__(self, words: str, assignment: Assignment) -> None:
        super().__init__(words)
        self.assignment = assignment


class CoordinatorLink:
    """The agent's end of the link to the coordinator.

    Args:
        assignment: this host's assignment.
        number: index of this host among the hosts of the run.
        line: connection to the coordinator.
    """

    def __init__(self, assignment: Assignment, number: int, line: WatchedLine) -> None:
        self._assignment = assignment
        self._host = assignment.host
        self._folder = Path(assignment.folder)
        self._line = line
        self._chunks: list[bytes] = []
        clock = time.monotonic
        head = live_header("agent", number, clock=clock, wall=time.time, host=assignment.host)
        self._recorder = Recorder(head, self._chunks.append, clock)
        self._exchanges: list[tuple[float, float, float]] = []
        self._heard = self._in = self._looked = time.monotonic()
        self._beaten = 0.0
        self._files: list[_Sending] = []
        self._sent: set[str] = set()

    def receive(self, message: Control) -> None:
        """Process a message of the coordinator."""
        self._heard = time.monotonic()
        if isinstance(message, Pong):
            self._exchanges.append((message.sent, message.there, self._heard))
            del self._exchanges[:-_EXCHANGES]
        elif isinstance(message, Stored):
            for file in self._files:
                if file.name == message.name:
                    file.stored(message.upto)

    def event(self, what: str, detail: dict[str, str]) -> None:
        """Record an event and send it at once: this host may be lost before the run ends."""
        self._recorder.event(what, detail)
        self._recorder.drain()
        self._line.send(TraceChunk(b"".join(self._chunks)))
        self._chunks.clear()

    def beat(self, workers: Iterable[Process]) -> None:
        """Send a heartbeat and the ends of workers, when they are due.

        Raises:
            FirstHostLost: the first host is lost.
        """
        now = time.monotonic()
        # This process was stopped itself, and has heard nothing for that reason: the first host
        # must not count as lost.
        if now - self._looked > _STOPPED:
            self._heard = self._in = now
        self._looked = now
        self._in = now if self._line.is_in else self._in
        silent = now - self._heard
        if silent > _SILENCE or (silent > _CUT and now - self._in > _CUT):
            raise FirstHostLost(
                f"no message from the first host for {silent:.0f} s; "
                f"the workers of {self._host} are ended",
                self._assignment,
            )
        self._collect(workers)
        for file in self._files:
            file.send(self._line)
        if now - self._beaten >= _INTERVAL:
            self._beaten = now
            self._line.send(Beat(now, 0, 0, None, "watch", ""))
            self.report_ends(workers)

    def _collect(self, workers: Iterable[Process]) -> None:
        """Queue the model files that finished workers have stored."""
        if all(worker.poll() is None for worker in workers):
            return
        for path in sorted(self._folder.glob("model*.safetensors")):
            if path.name not in self._sent:
                self._sent.add(path.name)
                self._files.append(_Sending(path))

    def report_ends(self, workers: Iterable[Process]) -> None:
        """Report the workers that have ended; repeatedly, because a message may be lost.

        A worker that has finished is reported only when its model file has arrived.
        """
        # The run counts as finished when its workers have: the model must be on the first host
        # before that.
        delivered = all(file.is_stored for file in self._files)
        for worker in workers:
            exit_ = worker.poll()
            if exit_ is not None and (exit_.failed or delivered):
                self._line.send(_ended(exit_, self._offset()))

    def report_end(self, exit_: Exit) -> None:
        """Report a worker that has ended and was restarted."""
        self._line.send(msgspec.structs.replace(_ended(exit_, self._offset()), again=True))

    def _offset(self) -> float:
        """Seconds by which the coordinator's clock is ahead of this host's."""
        return estimate_offset(self._exchanges).seconds if self._exchanges else 0.0

    def leave(self) -> None:
        """Send the trace and a goodbye."""
        if self._exchanges:
            offset = estimate_offset(self._exchanges)
            self._recorder.offset(offset.seconds, offset.error)
        self._recorder.flush()
        self._line.send(TraceChunk(b"".join(self._chunks)))
        self._line.send(Goodbye(0, 0))


class _Sending:
    """A file that is sent to the first host in pieces."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._path = path
        self._size = path.stat().st_size
        self._stored = 0
        self._asked = -1.0

    @property
    def is_stored(self) -> bool:
        """Whether all of it has arrived."""
        return self._stored == self._size

    def stored(self, upto: int) -> None:
        """Note that the first host has stored the first `upto` bytes."""
        # A repeated confirmation must not ask for the next piece a second time.
        if upto != self._stored:
            self._stored, self._asked = upto, -1.0

    def send(self, line: WatchedLine) -> None:
        """Send the next piece, or the same one again if it was not confirmed in time."""
        now = time.monotonic()
        if self.is_stored or 0 <= self._asked > now - 10.0:
            return
        self._asked = now
        with self._path.open("rb") as file:
            file.seek(self._stored)
            piece = file.read(_PIECE)
        line.send(Part(self.name, self._stored, self._size, piece))


def _ended(exit_: Exit, offset: float) -> Ended:
    """The message for the first host, with times on the coordinator's clock."""
    report = b""
    if exit_.report is not None:
        left = msgspec.structs.replace(exit_.report, at=exit_.report.at + offset)
        report = msgspec.json.encode(left)
        if len(report) > _REPORT:
            short = left.traceback[-_REPORT // 4 :]
            report = msgspec.json.encode(msgspec.structs.replace(left, traceback=short))
    about = (exit_.name, exit_.host, exit_.pid, exit_.code, report, exit_.words)
    return Ended(*about, exit_.incarnation, exit_.at + offset, exit_.early)
