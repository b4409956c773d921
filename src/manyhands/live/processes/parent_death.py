"""Signals that end a process: of a parent's death, Ctrl-C, SIGTERM; adoption of orphans (Linux)."""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
_adopting = threading.Lock()
LEAVING = (KeyboardInterrupt, SystemExit)
"""What Ctrl-C and, within `signals_raise`, signals raise."""
_arrived: list[int] = []
"""The signals that have arrived within `signals_raise`."""
_hooks: list[Callable[[Any], Any]] = []
"""What is told of exceptions that cannot be raised, outside of it."""
_sending: list[object] = []
"""The signal that is about to be sent again, if there is one."""
_CODE = 128
"""The exit code of a signal, without its number."""
_AGAIN = 0.01


def die_with(parent: int, death: signal.Signals) -> None:
    """Have the kernel send `death` to this process when its parent dies, however it dies.

    If the parent has died before this call, this process exits here.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(death), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl refused a parent-death signal")
    # After the request: a parent that ended before it sends no signal any more.
    if os.getppid() != parent:
        sys.exit(f"the agent (pid {parent}) ended before this process started")


@contextlib.contextmanager
def adopting() -> Iterator[None]:
    """Make this process the parent of orphaned descendants (a child subreaper).

    Only inside this context: at other times orphans go to the init process, as usual, and leave no
    zombies here.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    # A script may start runs in several threads: without the lock the first to leave would end the
    # adoption that another one still needs.
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
    is ignored (nohup); Ctrl-C raises KeyboardInterrupt. The outermost of nested contexts says
    which signal it was.

    An exception in a function that the interpreter calls (of a weak reference, as in every import;
    `__del__`; the garbage collector's) is lost: the signal is then sent again. What else was lost,
    as in an extension, is raised where the next context begins, except for an interrupt.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if signal.getsignal(signal.SIGTERM) is _leave:
        # A script may have caught an interrupt of its own accord, and go on.
        ending = [number for number in _arrived if number != signal.SIGINT]
        if ending:
            _raise(ending[0])
        yield
        return
    numbers = [signal.SIGTERM, signal.SIGUSR1]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        numbers.append(signal.SIGINT)
    kept = {number: signal.signal(number, _leave) for number in numbers}
    hook, sys.unraisablehook = sys.unraisablehook, _send_again
    _hooks.append(hook)
    try:
        yield
    except SystemExit as error:
        if _arrived and _arrived[0] == signal.SIGINT:
            # Whoever caught the interrupt meant to leave, with a code of its own.
            error.code = _CODE + signal.SIGINT
        elif _arrived:
            words = f"manyhands: ended by {signal.Signals(_arrived[0]).name}"
            with contextlib.suppress(OSError):
                print(f"{words}; all processes are ended", file=sys.stderr, flush=True)
        raise
    finally:
        _arrived.clear()
        _sending.clear()
        sys.unraisablehook = _hooks.pop()
        for number, handler in kept.items():
            signal.signal(number, handler)


def _leave(number: int, _frame: FrameType | None) -> None:
    _arrived.append(number)
    _raise(number)


def _raise(number: int) -> NoReturn:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(_CODE + number)


def _send_again(lost: Any) -> None:
    """Send a signal again whose exception the interpreter could not raise."""
    if not (_arrived and issubclass(lost.exc_type, LEAVING)):
        _hooks[-1](lost)
        return
    if _sending:
        return
    # An exception of the handler would be lost again in here, so it is sent after this has ended;
    # a `threading.Thread` would be waited for.
    over = threading.Lock()
    over.acquire()
    _sending.append(over)
    _thread.start_new_thread(_send, (over, _arrived[-1]))
    over.release()


def _send(over: threading.Lock, number: int) -> None:
    with over:
        time.sleep(_AGAIN)
    if over in _sending:
        # Otherwise another one has been raised meanwhile, and nothing is waited for any more.
        _sending.remove(over)
        os.kill(os.getpid(), number)
