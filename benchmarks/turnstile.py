"""Lets two sets of processes take turns on one machine, a few steps at a time.

Both sides stay alive through the whole measurement, so starting costs nothing in it and blocks
can be short: what disturbs the machine for seconds disturbs both sides alike.
"""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    import manyhands as mh

STEPS_MAX = 10**9


class Turnstile:
    """In the first worker of a side: call `step` before every training step."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._left = 0
        self._begun = 0.0

    def step(self) -> bool:
        """Wait for this side's turn; False when the measurement is over."""
        if self._left == 0:
            if self._begun:
                self._socket.sendall(f"{time.perf_counter() - self._begun:.9f}\n".encode())
            else:
                self._socket.sendall(b"ready\n")
            self._left = int(self._socket.makefile().readline() or 0)
            if not self._left:
                return False
            self._begun = time.perf_counter()
        self._left -= 1
        return True


def loop(trainer: mh.Trainer) -> None:
    """A job's loop that the turnstile holds up."""
    turnstile = Turnstile(os.environ["TURNSTILE"]) if trainer.rank == 0 else None
    for batch in trainer.batches():
        if turnstile and not turnstile.step():
            return
        trainer.step(batch)


class Side:
    """In the driver: one side of the comparison."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.path = str(folder / f"{name}.socket")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen(1)

    def wait_ready(self, processes: list[subprocess.Popen[str]], seconds: float = 120) -> None:
        """Wait for its first worker, or raise if one of its processes ends."""
        self._listener.settimeout(0.5)
        deadline = time.monotonic() + seconds
        while True:
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                ended = [process for process in processes if process.poll() is not None]
                if ended or time.monotonic() > deadline:
                    raise RuntimeError(f"{self.name} did not start") from None
            else:
                break
        connection.settimeout(seconds)
        self._connection = connection
        self._lines = connection.makefile()
        self._lines.readline()

    def rate(self, steps: int) -> float:
        """Steps per second over that many steps."""
        self._connection.sendall(f"{steps}\n".encode())
        return steps / float(self._lines.readline())

    def stop(self) -> None:
        """Let it end."""
        self._connection.sendall(b"0\n")
        self._connection.close()
        self._listener.close()
