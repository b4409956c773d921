"""What the agent of another host tells the coordinator: that it lives, and how its workers end."""

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
"""Seconds without a word from the first host after which it counts as gone."""
_CUT = 5.0
"""The same, if there is not even a connection."""
_PIECE = 512 * 1024
_REPORT = 256 * 1024
_EXCHANGES = 64


class CoordinatorLink:
    """An agent's side of its talk with the coordinator.

    Args:
        assignment: this host's.
        number: which of the hosts it is.
        line: to the coordinator.
    """

    def __init__(self, assignment: Assignment, number: int, line: WatchedLine) -> None:
        self._host = assignment.host
        self._folder = Path(assignment.folder)
        self._line = line
        self._chunks: list[bytes] = []
        clock = time.monotonic
        head = live_header("agent", number, clock=clock, wall=time.time, host=assignment.host)
        self._recorder = Recorder(head, self._chunks.append, clock)
        self._exchanges: list[tuple[float, float, float]] = []
        self._heard = self._in = time.monotonic()
        self._beaten = 0.0
        self._files: list[_Sending] = []
        self._sent: set[str] = set()

    def heard(self, message: Control) -> None:
        """Take in what it waits for."""
        self._heard = time.monotonic()
        if isinstance(message, Pong):
            self._exchanges.append((message.sent, message.there, self._heard))
            del self._exchanges[:-_EXCHANGES]
        elif isinstance(message, Stored):
            for file in self._files:
                if file.name == message.name:
                    file.stored(message.upto)

    def beat(self, workers: Iterable[Process]) -> None:
        """Tell the coordinator, when it is time, that this host lives and who has ended.

        Raises:
            RunFailed: the first host is gone.
        """
        now = time.monotonic()
        self._in = now if self._line.is_in else self._in
        silent = now - self._heard
        if silent > _SILENCE or (silent > _CUT and now - self._in > _CUT):
            raise RunFailed(
                f"the first host has not been heard of for {silent:.0f} s; "
                f"the workers of {self._host} are ended"
            )
        self._collect(workers)
        for file in self._files:
            file.send(self._line)
        if now - self._beaten >= _INTERVAL:
            self._beaten = now
            self._line.send(Beat(now, 0, 0, None, "watch", ""))
            self.tell_ends(workers)

    def _collect(self, workers: Iterable[Process]) -> None:
        """The files that finished workers have left for the run."""
        if all(worker.poll() is None for worker in workers):
            return
        for path in sorted(self._folder.glob("model*.safetensors")):
            if path.name not in self._sent:
                self._sent.add(path.name)
                self._files.append(_Sending(path))

    def tell_ends(self, workers: Iterable[Process]) -> None:
        """Say who has ended; again and again, because a word may be lost.

        One who has finished counts as ended only when what it left behind has arrived.
        """
        delivered = all(file.is_stored for file in self._files)
        for worker in workers:
            exit_ = worker.poll()
            if exit_ is not None and (exit_.failed or delivered):
                self._line.send(_ended(exit_, self._offset()))

    def _offset(self) -> float:
        """Seconds by which the coordinator's clock is ahead of this host's."""
        return estimate_offset(self._exchanges).seconds if self._exchanges else 0.0

    def last_words(self) -> None:
        """Hand in the trace and leave."""
        if self._exchanges:
            offset = estimate_offset(self._exchanges)
            self._recorder.offset(offset.seconds, offset.error)
        self._recorder.flush()
        self._line.send(TraceChunk(b"".join(self._chunks)))
        self._line.send(Goodbye(0, 0))


class _Sending:
    """A file on its way to the first host, piece after piece."""

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
        """So much of it has arrived."""
        if upto != self._stored:
            self._stored, self._asked = upto, -1.0

    def send(self, line: WatchedLine) -> None:
        """Send the next piece, or the same again if nothing was heard of it for long."""
        now = time.monotonic()
        if self.is_stored or 0 <= self._asked > now - 10.0:
            return
        self._asked = now
        with self._path.open("rb") as file:
            file.seek(self._stored)
            piece = file.read(_PIECE)
        line.send(Part(self.name, self._stored, self._size, piece))


def _ended(exit_: Exit, offset: float) -> Ended:
    """What the first host is told, its times on the coordinator's clock."""
    report = b""
    if exit_.report is not None:
        left = msgspec.structs.replace(exit_.report, at=exit_.report.at + offset)
        report = msgspec.json.encode(left)
        if len(report) > _REPORT:
            short = left.traceback[-_REPORT // 4 :]
            report = msgspec.json.encode(msgspec.structs.replace(left, traceback=short))
    about = (exit_.name, exit_.host, exit_.pid, exit_.code, report, exit_.words)
    return Ended(*about, exit_.life, exit_.at + offset)
