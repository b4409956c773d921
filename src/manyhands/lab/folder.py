"""The folder of a comparison, which remembers it: one that was interrupted goes on where it was."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from typing import TYPE_CHECKING

import msgspec

from manyhands.reports import RunResult, ending, read_results
from manyhands.reports.comparison.results import FILE
from manyhands.trace import Trace, read

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from manyhands.lab.order import PlannedRun

_IDENTITY = "comparison.json"
_SCRIPT = "content of the script"


@contextlib.contextmanager
def claimed(path: Path, identity: Mapping[str, str]) -> Iterator[Folder]:
    """Have the folder for oneself and for runs of this identity.

    Raises:
        ValueError: it holds something else, or somebody is at work in it.
    """
    path.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"another comparison is at work in {path}: wait for it, or name another folder"
            ) from None
        _recognise(path, identity)
        yield Folder(path)
    finally:
        os.close(handle)


def _recognise(path: Path, identity: Mapping[str, str]) -> None:
    file = path / _IDENTITY
    if not file.exists():
        if (path / "trace").exists() or (path / FILE).exists():
            raise ValueError(f"{path} holds results of something else; name another folder")
        partial = file.with_name(f"{file.name}.part")
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(identity), indent=1))
        partial.replace(file)
        return
    before = msgspec.json.decode(file.read_bytes(), type=dict[str, str])
    names = dict.fromkeys([*before, *identity])
    changed = [name for name in names if before.get(name) != identity.get(name)]
    if changed:
        told = "; ".join(_difference(name, before, identity) for name in changed)
        raise ValueError(
            f"{path} holds a comparison with other settings ({told}): give the same ones to go on "
            "with it, or name another folder"
        )


def _difference(name: str, before: Mapping[str, str], now: Mapping[str, str]) -> str:
    if name == _SCRIPT:
        return "the script has changed since"
    return f"{name}: {before.get(name, 'none')} there, {now.get(name, 'none')} now"


class Folder:
    """A comparison's folder.

    What was made is found by what lies there: the trace of a run that finished says so itself, and
    one that failed stands in the results. Whatever else lies there was interrupted.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.results = path / FILE
        former = read_results(self.results) if self.results.exists() else None
        self.created = former.created if former else None
        """When the comparison was begun; None if that is now."""
        runs = former.runs if former else ()
        self._failed = {run.folder: run for run in runs if run.status == "failed"}

    def place(self, turn: PlannedRun) -> str:
        """A run's folder, relative to this one."""
        return f"runs/{turn.name}"

    def run(self, turn: PlannedRun) -> Path:
        """A run's folder."""
        return self.path / self.place(turn)

    def log(self, turn: PlannedRun) -> Path:
        """What a run printed."""
        return self.path / "logs" / f"{turn.name}.log"

    def finished(self, turn: PlannedRun) -> Trace | None:
        """The trace of a run that was made and finished."""
        trace = self.trace(turn)
        return trace if trace is not None and ending(trace).status == "finished" else None

    def failed(self, turn: PlannedRun) -> RunResult | None:
        """The result of a run that was made and failed; remove its folder to try it again."""
        return self._failed.get(self.place(turn)) if self.run(turn).exists() else None

    def trace(self, turn: PlannedRun) -> Trace | None:
        """What a run wrote, if it can be read."""
        try:
            return read(self.run(turn))
        except (OSError, ValueError):
            return None

    def clear(self, turn: PlannedRun) -> None:
        """Remove what an interrupted run left."""
        shutil.rmtree(self.run(turn), ignore_errors=True)
