"""The actor of one node of Ray; it is loaded there, without torch."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from manyhands.launchers.private_key import written_key

_ANSWER_WITHIN = 1800.0
"""Seconds in which a node's agent must be answered: the driver may have to download its data."""
_LAST = 4000
"""Characters of a node's output that are shown if it cannot join."""


class NodeAgent:
    """The part of a run on one node of Ray: the agent of that host, as a process.

    Args:
        script: the script's path on the driver's node.
        source: its content.
        folder: the driver's working directory.
    """

    def __init__(self, script: str, source: bytes, folder: str) -> None:
        self._script = Path(script)
        self._source = source
        self._folder = Path(folder)

    def join(
        self, place: str, key: str, name: str, workers: int, threads: str | None
    ) -> tuple[int, str]:
        """Join the run at `place`; return the exit code and the last output when it is over."""
        with written_key(key) as file:
            script = self._own_script(file.parent)
            environment = dict(os.environ)
            # Ray sets it to the actor's processors, of which every worker has one.
            environment.pop("OMP_NUM_THREADS", None)
            if threads is not None:
                environment["OMP_NUM_THREADS"] = threads
            options = ("--key-file", file, "--as", name, "--workers", workers)
            where = ("--output", file.parent / "logs", "--parent", os.getpid())
            patience = ("--answer-within", _ANSWER_WITHIN)
            words = ("-m", "manyhands", "join", place, script, *options, *where, *patience)
            with tempfile.TemporaryFile() as output:
                process = subprocess.run(  # noqa: S603 - our own command
                    [sys.executable, *map(str, words)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    check=False,
                )
                output.seek(0)
                text = output.read().decode(errors="replace")
            return process.returncode, text.strip()[-_LAST:]

    def _own_script(self, private: Path) -> Path:
        """The script on this node, if it has the same, beside which it finds its modules; a copy.

        The working directory is a copy of the driver's if Ray's job has a `working_dir`.
        """
        here = [self._script]
        with contextlib.suppress(ValueError):
            here.append(Path.cwd() / self._script.relative_to(self._folder))
        wanted = hashlib.sha256(self._source).digest()
        for path in here:
            if path.is_file() and hashlib.sha256(path.read_bytes()).digest() == wanted:
                return path
        copy = private / self._script.name
        copy.write_bytes(self._source)
        return copy
