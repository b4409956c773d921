"""Heartbeat thread of a worker or server: sends heartbeats and traces, receives notices."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from manyhands.live.processes.incarnation import incarnation
from manyhands.trace import estimate_offset
from manyhands.wire import Beat, Goodbye, Hello, Pong, Repeat, Roll, TraceChunk
from manyhands.wire.leasing import Dismiss, Fence, Rejoined
from manyhands.wire.regrouping import Regroup

if TYPE_CHECKING:
    from collections.abc import Callable

    from manyhands.live.member.group_notices import GroupNotices
    from manyhands.live.member.progress import Progress
    from manyhands.trace import Header, Recorder
    from manyhands.transport.control import Line

INTERVAL = 1.0
"""Seconds between heartbeats."""
_CHUNK = 512 * 1024
_RECEIPT_WITHIN = 120.0
"""Seconds in which the coordinator, or its successor, must have received the end of the trace."""
_REPEAT = 1.0
"""Seconds until it is asked again."""
_EXCHANGES = 64


class VitalThread(threading.Thread):
    """A thread that its process needs: an exception in it ends the process."""


def end_with_threads(failed: Callable[[BaseException], object]) -> None:
    """Call `failed` in a vital thread that raises; other threads are handled by Python.

    Otherwise a worker without heartbeats, or without a peer server, would continue to run.
    """
    before = threading.excepthook

    def hook(raised: threading.ExceptHookArgs) -> None:
        before(raised)
        if isinstance(raised.thread, VitalThread) and raised.exc_value is not None:
            failed(raised.exc_value)

    threading.excepthook = hook


class Heartbeat(VitalThread):
    """Sends heartbeats until it is stopped.

    Args:
        recorder: the trace, flushed with every heartbeat.
        progress: the progress that heartbeats report.
        clock: a source of seconds.
    """

    def __init__(self, recorder: Recorder, progress: Progress, clock: Callable[[], float]) -> None:
        super().__init__(name="manyhands-heartbeat", daemon=True)
        self._recorder = recorder
        self._progress = progress
        self._clock = clock
        self._stopping = threading.Event()

    def run(self) -> None:
        """Send a heartbeat once per interval."""
        while not self._stopping.wait(INTERVAL):
            self._beat()

    def _beat(self) -> float | None:
        """Write the progress since the last heartbeat to the trace; return the mean loss."""
        drained = self._progress.drain_losses()
        if drained is not None:
            loss, samples = drained
            self._recorder.point("loss", loss, samples=self._progress.samples, weight=samples)
        if self._progress.accounts:
            self._recorder.samples(self._progress.samples, lost=self._progress.lost)
        self._recorder.drain()
        return drained[0] if drained else None

    def stop(self) -> None:
        """Send a last heartbeat and end the thread."""
        self._stopping.set()
        self.join(_RECEIPT_WITHIN + 10.0)


class FileHeartbeat(Heartbeat):
    """Heartbeat of a worker without a coordinator: its trace is written to a file."""

    def stop(self) -> None:
        """End the thread, then write the rest of the trace."""
        super().stop()
        self._beat()
        self._recorder.flush()


class LinkHeartbeat(Heartbeat):
    """Heartbeat of a worker or server that is connected to a coordinator."""

    def __init__(
        self,
        recorder: Recorder,
        progress: Progress,
        clock: Callable[[], float],
        header: Header,
        connect: Callable[[], Line],
        chunks: list[bytes],
        address: str = "",
    ) -> None:
        super().__init__(recorder, progress, clock)
        self._header = header
        self._address = address
        """Address at which other hosts connect to the server in this process."""
        self._connect = connect
        self._chunks = chunks
        self._exchanges: list[tuple[float, float, float]] = []
        self._answered = -1.0
        """When the last heartbeat that was answered was sent."""
        self._life: int | None = None
        """The incarnation of the coordinator that has answered last."""
        self._roll: Roll | None = None
        self._fenced: deque[Fence | Rejoined] = deque()
        self._fences = 0
        """Number of fences and returns received."""
        self.failed = False
        """Whether this process leaves because of an error."""
        self.dismissed = False
        """Whether the coordinator has sent that the run is over."""
        self._changed = threading.Condition()
        self.notices: GroupNotices | None = None
        """Announcements about this worker's group; None if the group never changes."""

    def roll(self, timeout: float) -> Roll:
        """Wait until all workers have joined; return the addresses of the servers."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._roll is not None, timeout):
                raise TimeoutError(f"not all workers have joined after {timeout:.0f} s")
            assert self._roll is not None  # noqa: S101 - guaranteed by the condition above
            return self._roll

    def take_fenced(self) -> list[Fence | Rejoined]:
        """Workers that were lost since the last call, or have returned."""
        # As many as there are now: the heartbeat thread appends meanwhile.
        return [self._fenced.popleft() for _ in range(len(self._fenced))]

    def run(self) -> None:
        """Send `Hello`, then heartbeats; the connection belongs to this thread."""
        line = self._connect()
        self._introduce(line)
        while not self._stopping.is_set():
            self._tell(line)
            due = self._clock() + INTERVAL
            while not self._stopping.is_set() and self._clock() < due and not self._is_urgent():
                longest = 0.25 if self.notices is None else 0.05
                self._listen(line, min(longest, max(0.0, due - self._clock())))
        self._note_offset()
        self._beat()
        self._recorder.flush()
        # Before the goodbye: with the last one the coordinator may end, and this trace would have
        # no reader (`docs/decisions/0088-patience.md`).
        self._hand_over(line)
        line.send(Goodbye(self._progress.step, self._progress.samples, self.failed))
        line.close(linger=5.0)

    def _introduce(self, line: Line) -> None:
        header = self._header
        about = (header.role, header.rank, header.host, header.pid, header.boot)
        line.send(Hello(*about, self._address, incarnation()))

    def _hand_over(self, line: Line) -> None:
        """Send the end of the trace until the coordinator has it: it may be restarted just now."""
        ending, before = [*self._chunks], self._life
        begun = asked = self._clock()
        self._tell(line)
        while self._clock() - begun < _RECEIPT_WITHIN:
            self._listen(line, 0.05)
            if self._answered >= begun:
                # The same coordinator has answered a heartbeat that was sent behind the chunks, so
                # it has them.
                if before is None or self._life == before:
                    return
                # The predecessor may have had it, and may not.
                before = self._life
                self._chunks[:0] = ending
                begun_again = self._clock()
                self._tell(line)
                begun = asked = begun_again
            elif self._clock() - asked > _REPEAT:
                asked = self._clock()
                self._tell(line)

    def _is_urgent(self) -> bool:
        return self.notices is not None and self.notices.urgent.is_set()

    def _tell(self, line: Line) -> None:
        loss = self._beat()
        # A copy, and the list stays: the recorder may append to it in another thread.
        chunks = [*self._chunks]
        del self._chunks[: len(chunks)]
        for lines in _within(b"".join(chunks), _CHUNK):
            line.send(TraceChunk(lines))
        progress = self._progress
        line.send(
            Beat(
                sent=self._clock(),
                step=progress.step,
                samples=progress.samples,
                loss=loss,
                phase=progress.phase,
                marks=progress.marks,
                line=progress.line(),
                fences=self._fences,
                group=self.notices.report() if self.notices is not None else None,
            )
        )

    def _listen(self, line: Line, timeout: float) -> None:
        for message in line.receive(timeout):
            if isinstance(message, Pong):
                self._answered, self._life = message.sent, message.life
                self._exchanges.append((message.sent, message.there, self._clock()))
                del self._exchanges[:-_EXCHANGES]
            elif isinstance(message, Fence | Rejoined):
                # They are counted in order: a repeated one is known, an early one is sent again.
                if message.number == self._fences:
                    self._fences += 1
                    self._fenced.append(message)
            elif isinstance(message, Regroup) and self.notices is not None:
                self.notices.receive(message)
            elif isinstance(message, Dismiss):
                self.dismissed = True
            elif isinstance(message, Repeat):
                # What followed the first `Hello` was lost with it: the beginning of the trace.
                self._introduce(line)
                line.send(TraceChunk(b"\n" + msgspec.json.encode(self._header) + b"\n"))
            elif isinstance(message, Roll):
                # Only with the first roll: a successor learns from it what was noted before its
                # start. Later rolls repeat what has come in its order already.
                if self._roll is None and message.noted > self._fences:
                    self._fenced.extend(message.notices)
                    self._fences = message.noted
                with self._changed:
                    self._roll = message
                    self._changed.notify_all()

    def _note_offset(self) -> None:
        if self._exchanges:
            offset = estimate_offset(self._exchanges)
            self._recorder.offset(offset.seconds, offset.error)


def _within(lines: bytes, limit: int) -> list[bytes]:
    """Complete lines in portions of at most `limit` bytes."""
    portions = []
    while lines:
        cut = len(lines) if len(lines) <= limit else lines.rfind(b"\n", 0, limit) + 1 or limit
        portions.append(lines[:cut])
        lines = lines[cut:]
    return portions
