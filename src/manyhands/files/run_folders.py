"""Folders of runs, each taken by exactly one process.

Names contain a time with a resolution of one second, so two runs that start together choose the
same one. A folder is therefore created in the moment in which its name is chosen, by `mkdir`, which
fails for all processes but one: a check for existence followed by a creation leaves a gap.
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
"""The folder within a run's that marks it as taken."""


def stamp() -> str:
    """The time of day, for the name of a folder."""
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
    """Take a folder for a run; False if it holds one already.

    Raises:
        ValueError: it cannot be created or written.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; name a folder for the run")
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
        raise ValueError(f"{folder} is a file; name a folder for the run")
    if (folder / TRACE).exists():
        raise ValueError(f"{folder} already holds a run; choose another folder or remove this one")


def release(folder: Path) -> None:
    """Remove a folder that was taken for a run that never began; one with content is kept."""
    for path in (folder / TRACE, folder):
        with contextlib.suppress(OSError):
            path.rmdir()


@contextlib.contextmanager
def _in_words(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ValueError(
            f"the folder {folder} cannot be created ({error.strerror}); name one that can be "
            "written with --output or output="
        ) from error
