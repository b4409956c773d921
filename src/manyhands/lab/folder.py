"""The folder of a comparison, from which an interrupted comparison is resumed."""

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
    """Lock the folder for this process, for runs of this identity.

    Raises:
        ValueError: it holds other results, or another comparison is using it.
    """
    with locked(path, identity):
        yield Folder(path)


@contextlib.contextmanager
def locked(
    path: Path, identity: Mapping[str, str], file: str = _IDENTITY, kind: str = "comparison"
) -> Iterator[None]:
    """Lock a folder for this process, and compare its identity with the one that it has.

    Args:
        path: the folder.
        identity: the settings by which it is recognised.
        file: the file in it that stores them.
        kind: what the folder holds, in words.

    Raises:
        ValueError: it holds other results, or another process is using it.
    """
    path.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"another {kind} is running in {path}: wait for it, or choose another folder"
            ) from None
        _recognise(path, identity, path / file, kind)
        yield
    finally:
        os.close(handle)


def _recognise(path: Path, identity: Mapping[str, str], file: Path, kind: str) -> None:
    if not file.exists():
        if (path / "trace").exists() or (path / FILE).exists():
            raise ValueError(f"{path} holds other results; choose another folder")
        partial = file.with_name(f"{file.name}.part")
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(identity), indent=1))
        partial.replace(file)
        return
    before = msgspec.json.decode(file.read_bytes(), type=dict[str, str])
    names = dict.fromkeys([*before, *identity])
    changed = [name for name in names if before.get(name) != identity.get(name)]
    if changed:
        differences = "; ".join(_difference(name, before, identity) for name in changed)
        raise ValueError(
            f"{path} holds a {kind} with other settings ({differences}): give the same ones "
            "to resume it, or choose another folder"
        )


def _difference(name: str, before: Mapping[str, str], now: Mapping[str, str]) -> str:
    if name == _SCRIPT:
        return "the script has changed"
    return f"{name}: {before.get(name, 'none')} there, {now.get(name, 'none')} now"


class Folder:
    """The runs and results in a comparison's folder.

    A finished run is recognised by its trace, a failed one by its entry in the results. All other
    runs were interrupted.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.results = path / FILE
        former = read_results(self.results) if self.results.exists() else None
        self.created = former.created if former else None
        """When the comparison was first started; None if it is started now."""
        runs = former.runs if former else ()
        self._failed = {run.folder: run for run in runs if run.status == "failed"}
        self._times = {run.folder: (run.started, run.ended) for run in runs}

    def place(self, turn: PlannedRun) -> str:
        """A run's folder, relative to this one."""
        return f"runs/{turn.name}"

    def run(self, turn: PlannedRun) -> Path:
        """A run's folder."""
        return self.path / self.place(turn)

    def log(self, turn: PlannedRun) -> Path:
        """The log file of a run."""
        return self.path / "logs" / f"{turn.name}.log"

    def finished(self, turn: PlannedRun) -> Trace | None:
        """The trace of a run, if it has finished."""
        trace = self.trace(turn)
        return trace if trace is not None and ending(trace).status == "finished" else None

    def failed(self, turn: PlannedRun) -> RunResult | None:
        """The result of a run, if it has failed; remove its folder to repeat it."""
        return self._failed.get(self.place(turn)) if self.run(turn).exists() else None

    def times(self, turn: PlannedRun) -> tuple[str, str]:
        """When a run was started and ended, if the results have it; empty otherwise."""
        return self._times.get(self.place(turn), ("", ""))

    def trace(self, turn: PlannedRun) -> Trace | None:
        """The trace of a run, if it is readable."""
        try:
            return read(self.run(turn))
        except (OSError, ValueError):
            return None

    def clear(self, turn: PlannedRun) -> None:
        """Remove the folder of an interrupted run."""
        shutil.rmtree(self.run(turn), ignore_errors=True)
