"""Launcher of a comparison's live runs: each is a process with a log.

A run is a command, so that nothing of it is left in the memory or the threads of the next one, and
a user can repeat it outside of the comparison (`docs/decisions/0021-comparisons.md`).

It leads its own process group, so that Ctrl-C reaches only the comparison, which then ends it. If
the comparison is killed, the kernel sends the run a signal to end.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

Launcher: TypeAlias = Callable[[Sequence[str], Path], "subprocess.Popen[bytes]"]
"""A function that starts a command which writes to a log."""

_GRACE = 15.0
"""Seconds in which a run must have ended its own processes."""


def start(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a run on this machine, with these variables in addition to this process's."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as stream:
        return subprocess.Popen(  # noqa: S603 - our own command
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )


def end(process: subprocess.Popen[bytes]) -> None:
    """End a run: SIGTERM first, so that it can end its workers and keep their traces."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # the kernel kills its workers with it
        process.wait()
