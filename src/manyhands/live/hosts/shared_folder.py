"""The file by which a process of another host sees that it shares the folder of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def marker_in(folder: Path, attempt: str) -> Path:
    """The marker: a file that the first host has in the folder while the run is going on.

    Args:
        folder: the first host's folder of the run.
        attempt: distinguishes the run from earlier ones in the folder.
    """
    return folder / f".run-{attempt}"
