"""Folders of runs, each claimed by exactly one process.

Names contain a time with a resolution of one second, so two runs that start together choose the
same name. A folder is therefore claimed by `mkdir`, which fails for all processes but one: a check
for existence followed by a creation would be a race.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TRACE = "trace"
"""The subfolder of a run's folder that marks it as claimed."""
EARLIER = "earlier"
"""The subfolder of a run's folder with what earlier attempts wrote, but for the checkpoints."""

LOGS = "logs"
"""The subfolder of a run's folder with what its processes printed."""
_BEGUN = b'"training",{}]'
"""The event of a worker that trains, as it stands in its trace."""


def stamp() -> str:
    """Date and time, for the name of a folder."""
    return time.strftime("%Y%m%d-%H%M%S")


def new_folder(first: Path) -> Path:
    """Create `first`, or the first of `first-2`, `first-3`, ... that does not exist.

    Raises:
        ValueError: it cannot be created.
    """
    with _in_words(first):
        first.parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        folder = first if number == 1 else first.with_name(f"{first.name}-{number}")
        with _in_words(folder), contextlib.suppress(FileExistsError):
            folder.mkdir()
            return folder
    raise AssertionError  # itertools.count never ends


def claim(folder: Path) -> bool:
    """Claim a folder for a run; False if it already holds one.

    Raises:
        ValueError: it cannot be created or written.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; choose a folder for the run")
    with _in_words(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            (folder / TRACE).mkdir()
        except FileExistsError:
            return False
    return True


def check_free(folder: Path) -> None:
    """Raise ValueError if a run cannot have this folder, without creating anything."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; choose a folder for the run")
    if (folder / TRACE).exists():
        raise ValueError(f"{folder} already holds a run; choose another folder or remove this one")


def release(folder: Path) -> None:
    """Remove the folder of a run that never began, unless it has other content."""
    for path in (folder / TRACE, folder):
        with contextlib.suppress(OSError):
            path.rmdir()


def free_again(folder: Path) -> Path | None:
    """Let another run have the folder of one that never began; where its logs are, if it has any.

    A run has begun when a worker trains.
    """
    release(folder)
    traces = (folder / TRACE).glob("worker-*.jsonl")
    if not (folder / TRACE).is_dir() or any(_BEGUN in trace.read_bytes() for trace in traces):
        return None
    aside = new_place(folder / EARLIER)
    for name in (TRACE, LOGS):
        with contextlib.suppress(FileNotFoundError):
            (folder / name).rename(aside / name)
    return aside


def new_place(earlier: Path) -> Path:
    """A new subfolder for what an attempt wrote: 1, 2, 3 ..."""
    for number in itertools.count(1):
        with contextlib.suppress(FileExistsError):
            (earlier / str(number)).mkdir(parents=True)
            return earlier / str(number)
    raise AssertionError  # itertools.count never ends


@contextlib.contextmanager
def _in_words(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ValueError(
            f"the folder {folder} cannot be created ({error.strerror}); choose a writable one "
            "with --output or output="
        ) from error
