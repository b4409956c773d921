"""A run that is continued in its own folder: what the earlier attempt wrote is set aside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.files.checkpoints.manifest import CHECKPOINTS
from manyhands.files.checkpoints.reading import generations
from manyhands.files.checkpoints.writing import sweep
from manyhands.files.run_folders import EARLIER, new_place

if TYPE_CHECKING:
    from pathlib import Path

    from manyhands.files.checkpoints.reading import Checkpoint


def set_aside(folder: Path, resumed: Checkpoint) -> None:
    """Make room for a run that continues in the folder of an earlier one.

    Checkpoints that may have the damage of a divergence are set aside with it.
    """
    if resumed.folder.parent.resolve() != (folder / CHECKPOINTS).resolve():
        return
    make_room(folder, resumed.samples if resumed.diverged else None)


def make_room(folder: Path, most: int | None = None) -> None:
    """Set aside what an attempt wrote into the folder of its run, except the checkpoints.

    Args:
        folder: the folder of the run.
        most: checkpoints after more samples than this are set aside, too.
    """
    sweep(folder / CHECKPOINTS)
    old = [path for path in folder.iterdir() if path.name not in (CHECKPOINTS, EARLIER)]
    aside = new_place(folder / EARLIER)
    for path in old:
        path.rename(aside / path.name)
    for path in generations(folder / CHECKPOINTS) if most is not None else ():
        if int(path.name) > (most or 0):
            path.rename(aside / path.name)
