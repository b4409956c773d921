"""Newborns: processes that a nursery forks, from their fork until they are as if started afresh.

A newborn reports itself to the agent over the nursery's link. One that is killed before it can is
reported by the nursery, which reads a pipe that the newborn holds open until then.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib.util
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec

from manyhands.live.processes.parent_death import die_with
from manyhands.live.processes.process_title import show
from manyhands.live.processes.supervision import Start

if TYPE_CHECKING:
    import socket

_REPORTED = b"."
"""What a newborn writes to the nursery's pipe once it has reported itself."""


class Order(msgspec.Struct, frozen=True):
    """A process to be born: how, and in which surroundings."""

    number: int
    """Orders are counted, so that a late word about one is not taken for the next one's answer."""
    start: Start
    folder: str
    changed: dict[str, str]
    """The environment, where it differs from the nursery's."""
    removed: list[str]


class Born(msgspec.Struct, frozen=True, tag="born"):
    """A newborn says its process id."""

    order: int
    pid: int


class Unborn(msgspec.Struct, frozen=True, tag="unborn"):
    """A process could not be born."""

    order: int
    words: str
    """Why; empty if it was forked and ended before it could report itself."""
    pid: int = 0
    """Its process id, if it was forked."""


def fork(link: socket.socket, agent: int, order: Order) -> bool:
    """Give birth as ordered; whether this process is the newborn."""
    reading, writing = os.pipe()
    try:
        child = os.fork()
    except OSError as error:
        os.close(reading)
        os.close(writing)
        _unborn(link, order, f"the nursery could not fork: {error}")
        return False
    if child:
        os.close(writing)
        _, status = os.waitpid(child, 0)
        _answer_for(link, order, reading, failed=status != 0)
        return False
    os.close(reading)
    leaving = os.getpid()
    try:
        newborn = os.fork()
    except OSError:
        os._exit(1)
    if newborn:
        os.write(writing, f"{newborn} ".encode())
        os._exit(0)
    try:
        _settle(leaving, agent, order)
    except BaseException as error:
        _unborn(link, order, f"{type(error).__name__}: {error}", os.getpid())
        os.write(writing, _REPORTED)
        raise
    link.send(msgspec.json.encode(Born(order.number, os.getpid())))
    os.write(writing, _REPORTED)
    os.close(writing)
    return True


def _answer_for(link: socket.socket, order: Order, reading: int, *, failed: bool) -> None:
    """Wait until a newborn has reported itself; report it if it ended before it could."""
    written = b""
    while data := os.read(reading, 64):
        written += data
    os.close(reading)
    if _REPORTED in written:
        return
    if written:
        _unborn(link, order, "", int(written))
    else:
        words = "the nursery could not fork twice" if failed else "it was lost while it was forked"
        _unborn(link, order, words)


def _unborn(link: socket.socket, order: Order, words: str, pid: int = 0) -> None:
    link.send(msgspec.json.encode(Unborn(order.number, words, pid)))


def _settle(leaving: int, agent: int, order: Order) -> None:
    """Take up the surroundings that a process started afresh would have."""
    start = order.start
    show([sys.executable, "-m", start.module, *start.arguments])
    os.setsid()
    while os.getppid() == leaving:
        time.sleep(0.001)
    die_with(agent, signal.SIGKILL)
    os.chdir(order.folder)
    for name in order.removed:
        os.environ.pop(name, None)
    os.environ.update(order.changed)
    for target, path in ((1, start.out), (2, start.err)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(file, target)
        os.close(file)


def become(start: Start, before: str, folder: str) -> None:
    """Run the module as `python -m` does."""
    import numpy as np  # noqa: PLC0415 - it is loaded already

    from manyhands.script.loading import execute  # noqa: PLC0415 - see above

    # Python draws a new seed after a fork by itself; torch begins with the same in all processes.
    np.random.seed()
    if sys.path and sys.path[0] == before:
        sys.path[0] = folder
    spec = importlib.util.find_spec(start.module)
    if spec is None or spec.origin is None:
        raise ImportError(f"there is no module {start.module}")
    sys.orig_argv = [sys.executable, "-m", start.module, *start.arguments]
    sys.argv = [spec.origin, *start.arguments]
    execute(Path(spec.origin), "__main__", spec.parent or "", spec)
    _leave()


def _leave() -> NoReturn:
    """End this process as Python does, but for the last step: taking its objects apart.

    They lie in memory that is shared with the nursery as long as nothing is written there. To take
    them apart writes everywhere, and would give every process of a run a copy of more than 100 MB
    of its own in the moment in which all of them end.
    """
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    ctypes.CDLL(None).fflush(None)  # what C libraries have printed
    os._exit(0)
