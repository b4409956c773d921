"""The file by which a process of another host sees that it shares the folder of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from manyhands.live.assignment import Assignment


def marker_in(folder: Path, attempt: str) -> Path:
    """The marker: a file that the first host has in the folder while the run is going on.

    Args:
        folder: the first host's folder of the run.
        attempt: distinguishes the run from earlier ones in the folder.
    """
    return folder / f".run-{attempt}"


def shares_folder(assignment: Assignment) -> bool:
    """Whether this process sees the first host's folder, where checkpoints are stored."""
    if not assignment.hosts or assignment.host == assignment.hosts[0][0]:
        return True
    return marker_in(Path(assignment.storage), assignment.attempt).exists()
