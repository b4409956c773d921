"""Parent-death signals, and adoption of orphaned processes (Linux child subreapers)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
_adopting = threading.Lock()
LEAVING = (KeyboardInterrupt, SystemExit)
"""What Ctrl-C and, within `signals_raise`, signals raise."""
_arrived: list[int] = []
"""The signals that have arrived within `signals_raise`."""


def die_with(parent: int, death: signal.Signals) -> None:
    """Have the kernel send `death` to this process when its parent dies, however it dies.

    If the parent has died before this call, this process exits here.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(death), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl refused a parent-death signal")
    if os.getppid() != parent:
        sys.exit(f"the agent (pid {parent}) ended before this process started")


@contextlib.contextmanager
def adopting() -> Iterator[None]:
    """Make this process the parent of orphaned descendants (a child subreaper).

    Only inside this context: at other times orphans go to the init process, as usual, and leave no
    zombies here.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    with _adopting:
        before = _adopts(libc)
        if before is None or libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl refused to make this process a subreaper")
        try:
            yield
        finally:
            libc.prctl(_PR_SET_CHILD_SUBREAPER, before, 0, 0, 0)


def can_adopt() -> bool:
    """Whether the kernel supports child subreapers."""
    return sys.platform == "linux" and _adopts(ctypes.CDLL(None, use_errno=True)) is not None


def _adopts(libc: ctypes.CDLL) -> int | None:
    """Whether this process is a child subreaper now; None if the kernel does not support it."""
    answer = ctypes.c_int()
    refused = libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0)
    return None if refused else answer.value


@contextlib.contextmanager
def signals_raise() -> Iterator[None]:
    """Turn SIGTERM, SIGUSR1 and SIGHUP into SystemExit, so that the run's processes are ended.

    A scheduler sends SIGTERM, or SIGUSR1 some time before it, a closed terminal SIGHUP, unless it
    is ignored (nohup); Ctrl-C raises an exception already. The outermost of nested contexts says
    which signal it was. A signal whose exception was lost, as in a function that the interpreter
    calls, raises it again where the next context begins.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if signal.getsignal(signal.SIGTERM) is _leave:
        if _arrived:
            sys.exit(128 + _arrived[0])
        yield
        return
    numbers = [signal.SIGTERM, signal.SIGUSR1]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    kept = {number: signal.signal(number, _leave) for number in numbers}
    try:
        yield
    except SystemExit:
        if _arrived:
            words = f"manyhands: ended by {signal.Signals(_arrived[0]).name}"
            with contextlib.suppress(OSError):
                print(f"{words}; all processes are ended", file=sys.stderr, flush=True)
        raise
    finally:
        _arrived.clear()
        for number, handler in kept.items():
            signal.signal(number, handler)


def _leave(number: int, _frame: FrameType | None) -> None:
    _arrived.append(number)
    sys.exit(128 + number)
