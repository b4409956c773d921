"""Runs that end before they have begun: the same command may be given again."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from manyhands.failure import Refused
from manyhands.files.checkpoints import CHECKPOINTS
from manyhands.files.run_folders import free_again, release
from manyhands.live.processes.parent_death import LEAVING, signals_raise

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def freeing(folder: Path, taken: set[Path]) -> Iterator[None]:
    """Context of a run from when it has its folder: another may have it if this one never begins.

    Args:
        folder: the run's folder. One with checkpoints is that of a run which can be continued.
        taken: the folders that this process has claimed.
    """
    try:
        with signals_raise():
            yield
    except Refused:
        release(folder)
        taken.discard(folder)
        raise
    except LEAVING:
        if folder in taken and not (folder / CHECKPOINTS).exists():
            aside = free_again(folder)
            if aside is not None:
                taken.discard(folder)
                words = f"manyhands: the run had not begun; what it wrote is in {aside}"
                print(words, file=sys.stderr, flush=True)
        raise
