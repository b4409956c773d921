"""Forked processes: forking in the fork server, and setting up the forked process.

A forked process reports itself to the agent over the fork server's link. If it is killed before
that, the fork server reports it: it reads a pipe that the forked process holds open until then.
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
from manyhands.live.processes.supervision import FINISHED, Start

if TYPE_CHECKING:
    import socket

_REPORTED = b"."
"""What a forked process writes to the fork server's pipe once it has reported itself."""


class Preload(msgspec.Struct, frozen=True, tag="preload"):
    """An order to load modules that processes to be forked will import."""

    modules: tuple[str, ...]


class Order(msgspec.Struct, frozen=True, tag="order"):
    """An order to fork a process: its module, working directory and environment."""

    number: int
    """Orders are numbered, so that a late report is not taken for the answer to the next order."""
    start: Start
    folder: str
    changed: dict[str, str]
    """Environment variables that differ from the fork server's."""
    removed: list[str]


class Forked(msgspec.Struct, frozen=True, tag="born"):
    """Report of a forked process: its process id."""

    order: int
    pid: int


class NotForked(msgspec.Struct, frozen=True, tag="unborn"):
    """Report that a process could not be forked, or ended before it reported itself."""

    order: int
    words: str
    """Why; empty if it was forked and ended before it could report itself."""
    pid: int = 0
    """Its process id, if it was forked."""


def fork(link: socket.socket, agent: int, order: Order) -> bool:
    """Fork as ordered; return whether this process is the forked one."""
    reading, writing = os.pipe()
    try:
        child = os.fork()
    except OSError as error:
        os.close(reading)
        os.close(writing)
        _report_failure(link, order, f"the fork server could not fork: {error}")
        return False
    if child:
        os.close(writing)
        _, status = os.waitpid(child, 0)
        _answer_for(link, order, reading, failed=status != 0)
        return False
    os.close(reading)
    leaving = os.getpid()
    try:
        forked = os.fork()
    except OSError:
        os._exit(1)
    # The number is written before this process exits: the forked one may be killed before it can
    # report itself, and the agent has to know which one it was.
    if forked:
        os.write(writing, f"{forked} ".encode())
        os._exit(0)
    try:
        _settle(leaving, agent, order)
    except BaseException as error:
        _report_failure(link, order, f"{type(error).__name__}: {error}", os.getpid())
        os.write(writing, _REPORTED)
        raise
    # Before the fork server is told: a process that is killed between the two is reported twice,
    # which the agent recognises. In the other order it would be reported by neither.
    link.send(msgspec.json.encode(Forked(order.number, os.getpid())))
    os.write(writing, _REPORTED)
    os.close(writing)
    return True


def _answer_for(link: socket.socket, order: Order, reading: int, *, failed: bool) -> None:
    """Wait until a forked process has reported itself; report it if it ended before that."""
    written = b""
    while data := os.read(reading, 64):
        written += data
    os.close(reading)
    if _REPORTED in written:
        return
    if written:
        _report_failure(link, order, "", int(written))
    else:
        words = (
            "the fork server could not fork twice" if failed else "it was lost while it was forked"
        )
        _report_failure(link, order, words)


def _report_failure(link: socket.socket, order: Order, words: str, pid: int = 0) -> None:
    link.send(msgspec.json.encode(NotForked(order.number, words, pid)))


def _settle(leaving: int, agent: int, order: Order) -> None:
    """Set the session, parent, directory, environment and log files of a new process."""
    start = order.start
    show([sys.executable, "-m", start.module, *start.arguments])
    # Before it is reported: the agent ends it by its process group.
    os.setsid()
    # Until the agent has adopted it: before that the signal of a parent's death would be that of
    # the process in between, which exits at once.
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

    # Python reseeds `random` after a fork; torch starts with the same seed in every process.
    np.random.seed()
    if sys.path and sys.path[0] == before:
        sys.path[0] = folder
    spec = importlib.util.find_spec(start.module)
    if spec is None or spec.origin is None:
        raise ImportError(f"there is no module {start.module}")
    sys.orig_argv = [sys.executable, "-m", start.module, *start.arguments]
    sys.argv = [spec.origin, *start.arguments]
    code = 0
    try:
        execute(Path(spec.origin), "__main__", spec.parent or "", spec)
    except SystemExit as leaving:
        if leaving.code != FINISHED:
            raise
        code = FINISHED
    _leave(code)


def _leave(code: int) -> NoReturn:
    """End this process as Python does, except for the last step, the destruction of its objects.

    Their memory is shared with the fork server as long as it is not written to. Destroying the
    objects writes to all of it, and would give each process its own copy of more than 100 MB at
    the moment when all of them end (`docs/decisions/0045-memory-of-many-processes.md`).
    """
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    ctypes.CDLL(None).fflush(None)  # output buffered by C libraries
    os._exit(code)
