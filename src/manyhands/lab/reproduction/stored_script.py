"""The script of a stored comparison: its file if it is unchanged, else its stored text."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from manyhands.lab.design import Script
from manyhands.script.loading import load
from manyhands.script.origin import Origin
from manyhands.seeding import random_state, restore_random_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from manyhands.job import Job
    from manyhands.reports import ScriptRecord

_FIRST_SEED = 67280421310721
"""The seed of torch's generator in a new process."""


@dataclass(frozen=True)
class FoundScript:
    """The script by which a comparison is made again."""

    script: Script
    words: str
    """Which one it is, and why."""
    folder: Path | None
    """The folder of the original file, from which the script imports other files; None if there is
    none, or if the script is in it."""

    @contextlib.contextmanager
    def importable(self) -> Iterator[None]:
        """Let the script import the files beside the original, here and in new processes."""
        if self.folder is None:
            yield
            return
        folder, former = str(self.folder), os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = folder if not former else f"{folder}{os.pathsep}{former}"
        sys.path.insert(0, folder)
        try:
            yield
        finally:
            with contextlib.suppress(ValueError):
                sys.path.remove(folder)
            if former is None:
                del os.environ["PYTHONPATH"]
            else:
                os.environ["PYTHONPATH"] = former


def find_script(record: ScriptRecord, beside: Path, given: Path | None, into: Path) -> FoundScript:
    """The script to use.

    Args:
        record: the script as it was stored.
        beside: the folder of `results.json`.
        given: the file that was named, if any.
        into: the folder to which the stored text is written, if it is used.

    Raises:
        ValueError: the file has changed or is gone, and its text was not stored.
    """
    if given is not None:
        changed = "" if _digest(given) == record.sha256 else ", which differs from the stored one"
        return _found(record, given, f"{given}{changed}", None)
    nearby = [] if record.path is None else [beside / record.path]
    files = [path for path in (*nearby, Path(record.name)) if path.is_file()]
    for path in files:
        if _digest(path) == record.sha256:
            return _found(record, path, f"{path}, unchanged", None)
    why = f"{files[0]} differs from it" if files else f"no file {record.name} was found"
    if record.text is None:
        raise ValueError(f"the script's text was not stored, and {why}: name it with --script")
    into.mkdir(parents=True, exist_ok=True)
    copy = into / record.name
    copy.write_bytes(record.text.encode("utf-8"))
    folder = files[0].resolve().parent if files else None
    return _found(record, copy, f"the stored text, as {copy}: {why}", folder)


def _found(record: ScriptRecord, path: Path, words: str, folder: Path | None) -> FoundScript:
    script = Script(path=path.resolve(), job=record.job, arguments=record.arguments)
    return FoundScript(script, words, folder)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def load_job(script: Script) -> Job:
    """Execute a script as a worker does, and return its job.

    Random numbers that the script draws while it is executed are those of a new process.

    Raises:
        TypeError: the script has no job of that name above its main guard.
    """
    arguments, search, state = sys.argv, [*sys.path], random_state()
    path = str(script.path)
    origin = Origin(
        script=path,
        package="",
        search=str(script.path.parent),
        argv=(path, *script.arguments),
        job=script.job,
        loop=None,
    )
    try:
        torch.default_generator.manual_seed(_FIRST_SEED)
        job, _ = load(origin)
    finally:
        sys.argv, sys.path[:] = arguments, search
        restore_random_state(state)
    return job
