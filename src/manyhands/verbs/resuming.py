"""Runs that continue from a checkpoint: which one, and what has changed since."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from manyhands.files.checkpoints import CHECKPOINTS, generations, latest
from manyhands.files.run_folders import TRACE
from manyhands.files.tensor_format import MODEL
from manyhands.live.request import RunSetting

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from manyhands.files.checkpoints import Checkpoint
    from manyhands.job import Job
    from manyhands.strategies import Strategy

_UNIMPORTANT: Final = ("checkpoint", "epochs", "samples", "seconds", "target", "durability")
"""Settings that may differ without a word: when to stop, and when to store."""


def find_checkpoint(asked: Path | None, output: Path | None, job: Job) -> Checkpoint | None:
    """The checkpoint that a run continues from; None if it begins.

    Args:
        asked: the folder of the run that was named.
        output: the folder that this run is to have: an unfinished run there is continued, if this
            one stores checkpoints.
        job: the job of this run.

    Raises:
        ValueError: the run that was named has no checkpoint.
    """
    if asked is not None:
        return latest(asked)
    if output is None or job.checkpoint is None or not _is_unfinished(output):
        return None
    return latest(output)


def _is_unfinished(folder: Path) -> bool:
    begun = (folder / TRACE).exists() and not (folder / MODEL).exists()
    return begun and bool(generations(folder / CHECKPOINTS))


def resume_settings(
    resumed: Checkpoint | None, job: Job, strategy: Strategy, workers: int
) -> Iterator[RunSetting]:
    """What a run records about the one that it continues."""
    if resumed is None:
        return
    manifest = resumed.manifest
    where = f"{resumed.folder} ({manifest.samples} samples, {manifest.step} steps)"
    yield RunSetting("resumed", where, "command line")
    if resumed.skipped:
        yield RunSetting("damaged", "; ".join(resumed.skipped), "command line")
    changed = [*_changes(resumed, job, strategy, workers)]
    if changed:
        yield RunSetting("changed since", "; ".join(changed), "command line")


def _changes(resumed: Checkpoint, job: Job, strategy: Strategy, workers: int) -> Iterator[str]:
    before = {"strategy": resumed.manifest.strategy, "workers": str(resumed.manifest.workers)}
    now = {"strategy": str(strategy), "workers": str(workers)}
    before |= resumed.manifest.settings
    now |= job.settings
    for name in {**before, **now}:
        if name not in _UNIMPORTANT and before.get(name) != now.get(name):
            yield f"{name} was {before.get(name, 'not set')}, and is {now.get(name, 'not set')}"
