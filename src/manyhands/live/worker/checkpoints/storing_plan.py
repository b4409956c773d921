"""Where a run stores its checkpoints, and from which one it continues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


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
