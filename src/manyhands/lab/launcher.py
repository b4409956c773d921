"""How a live run of a comparison is started and ended: a process with a log.

It leads a process group of its own, so that Ctrl-C reaches the comparison alone, which then ends
it. If the comparison is killed outright, the kernel tells the run to end.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

Launcher: TypeAlias = Callable[[Sequence[str], Path], "subprocess.Popen[bytes]"]
"""Starts a command that writes to a log; another one may start it in another network."""

_GRACE = 15.0
"""Seconds in which a run must have ended its own processes."""


def start(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a run on this machine as it is."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as stream:
        return subprocess.Popen(  # noqa: S603 - our own command
            command,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def end(process: subprocess.Popen[bytes]) -> None:
    """End it, politely first: it ends its workers, which then lose nothing of their traces."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its workers are killed with it, by the kernel
        process.wait()
