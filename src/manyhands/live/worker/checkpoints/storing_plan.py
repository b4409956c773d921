"""Where a run stores its checkpoints, and from which one it continues."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Flag, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class StoredIn(Flag):
    """Where a checkpoint is stored."""

    DISK = auto()
    MEMORY = auto()


@dataclass(frozen=True)
class StoringPlan:
    """Where a run stores its checkpoints, and from which it continues."""

    folder: Path
    """The folder of the run."""
    strategy: str
    attempt: str
    """Distinguishes this run from earlier ones in the same folder."""
    resume: Path | None = None
    """The generation that it continues from."""
    storing: tuple[str, ...] = ()
    """The processes that see the folder, as `worker-0` and `server-0`; empty for all."""
    memory: tuple[str, ...] = ()
    """Where the memory for checkpoints can be opened: one file for each worker, for the first
    generation and then for the second; empty if none is kept in memory."""
    generation: int = 0
    """Which of the two is written first."""
    hosts: tuple[tuple[str, int], ...] = ()
    """All hosts in order, each with its number of workers; empty for a run on one host."""
    note: Callable[[int, str], None] | None = None
    """Called if a checkpoint was not stored: its samples, and why."""

    @property
    def spans_hosts(self) -> bool:
        """Whether workers on several hosts keep checkpoints in memory."""
        return bool(self.memory) and sum(count > 0 for _, count in self.hosts) > 1
