"""Forked calls: a function is executed in a forked copy of this process.

The copy has all objects of this process, so neither a script is executed again nor anything is
serialised but texts: those that the function sends while it runs, and its result.

Only the calling thread exists in the copy. This is safe if no other thread of this process holds a
lock that the function needs, and, as in the worker processes of torch's DataLoader, if torch
computes in one thread there: OpenMP's and CUDA's threads do not exist in the copy.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
import traceback
from typing import TYPE_CHECKING, NoReturn

import msgspec

from manyhands.live.processes.parent_death import die_with

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType

    Send = Callable[[str], None]

_GRACE = 15.0
"""Seconds in which a process must have ended after SIGTERM."""
_LOOK_EVERY = 0.05
_CHUNK = 1 << 16
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Line(msgspec.Struct, array_like=True):
    """What the forked process writes to its pipe, a line each."""

    text: str
    is_result: bool = False


class ForkedCall:
    """A call of a function in a forked process.

    Args:
        function: called with a function that sends a text to this process; returns a text. The
            process has SIGINT ignored, so that Ctrl-C reaches only this process, which then ends
            the forked one.
    """

    def __init__(self, function: Callable[[Send], str]) -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        parent = os.getpid()
        self._reading, writing = os.pipe()
        # Blocked, so that no handler of this process is executed in the forked one.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        try:
            self.pid = os.fork()
            if self.pid == 0:
                _execute(function, writing, parent, before)
        except OSError:
            os.close(self._reading)
            raise
        finally:
            os.close(writing)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._pending = b""
        self._code: int | None = None
        self.result: str | None = None
        """What the function returned; None if it has not, or if its process ended before that."""

    def fileno(self) -> int:
        """The descriptor that is readable when there is something to `read`."""
        return self._reading

    @property
    def is_over(self) -> bool:
        """Whether its process has ended."""
        return self._code is not None

    def read(self) -> list[str]:
        """The texts that were sent since the last call; blocks until there is something to read."""
        chunk = os.read(self._reading, _CHUNK)
        if not chunk:
            self._note_end(os.waitpid(self.pid, 0)[1])
            return []
        *lines, self._pending = (self._pending + chunk).split(b"\n")
        texts = []
        for line in lines:
            said = msgspec.json.decode(line, type=_Line)
            if said.is_result:
                self.result = said.text
            else:
                texts.append(said.text)
        return texts

    @property
    def ending(self) -> str:
        """How its process ended, in words."""
        if self._code is not None and self._code < 0:
            return f"ended by {signal.Signals(-self._code).name}"
        return f"exited with code {self._code}"

    def _note_end(self, status: int) -> None:
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(status)
            os.close(self._reading)


def wait(calls: Iterable[ForkedCall], seconds: float) -> list[ForkedCall]:
    """The calls that have something to read, after at most so many seconds."""
    return select.select(list(calls), [], [], seconds)[0]


def end(calls: Iterable[ForkedCall]) -> None:
    """End the processes of all calls: SIGTERM first, so that they can complete their files."""
    left = [call for call in calls if not call.is_over]
    for call in left:
        os.kill(call.pid, signal.SIGTERM)
    until = time.monotonic() + _GRACE
    for call in left:
        while not call.is_over:
            if time.monotonic() > until:
                os.kill(call.pid, signal.SIGKILL)
            pid, status = os.waitpid(call.pid, os.WNOHANG)
            if pid:
                call._note_end(status)
            else:
                time.sleep(_LOOK_EVERY)


def _execute(
    function: Callable[[Send], str], writing: int, parent: int, mask: Iterable[int]
) -> NoReturn:
    """In the forked process: call the function, send its result, and exit."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, _leave)
        signal.signal(signal.SIGHUP, _leave)
        # After its own handlers are set: a signal that came during the fork is delivered here.
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if sys.platform == "linux":
            die_with(parent, signal.SIGKILL)

        def send(line: _Line) -> None:
            rest = memoryview(msgspec.json.encode(line) + b"\n")
            while rest:
                rest = rest[os.write(writing, rest) :]

        send(_Line(function(lambda text: send(_Line(text))), is_result=True))
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1
    except BaseException:  # noqa: BLE001 - this process ends here, whatever it is
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        # Not sys.exit: what the parent registered for its own exit is not to be done twice.
        os._exit(code)


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)
