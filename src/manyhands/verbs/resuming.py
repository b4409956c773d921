"""Runs that continue from a checkpoint: which one, and what has changed since."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from manyhands.data.folders import cache_folder
from manyhands.files.checkpoints import CHECKPOINTS, generations, latest
from manyhands.files.checkpoints.remote import RemoteCheckpoints, is_url
from manyhands.files.run_folders import TRACE
from manyhands.files.tensor_format import MODEL
from manyhands.live.agent.recovery.from_divergence import sound_until
from manyhands.live.request import RunSetting
from manyhands.reports.figures.outcome import ending
from manyhands.trace import read

if TYPE_CHECKING:
    from collections.abc import Iterator

    from manyhands.files.checkpoints import Checkpoint
    from manyhands.job import Job
    from manyhands.strategies import Strategy

_DIVERGED: Final = "diverged: "
_UNIMPORTANT: Final = (
    *("checkpoint", "epochs", "samples", "seconds", "target", "durability", "start"),
)
"""Settings that may differ without a word: when to stop, when to store, and the initial weights,
which a run that continues takes from its checkpoint."""


def find_checkpoint(asked: str | Path | None, output: Path | None, job: Job) -> Checkpoint | None:
    """The checkpoint that a run continues from; None if it begins.

    Args:
        asked: the folder of the run that was named, or a URL.
        output: the folder that this run is to have: an unfinished run there is continued, if this
            one stores checkpoints.
        job: the job of this run.

    Raises:
        ValueError: the run that was named has no checkpoint.
    """
    if job.checkpoint is not None and job.checkpoint.to:
        # Before a process starts: what is missing for this URL is said now.
        RemoteCheckpoints(job.checkpoint.to)
    if asked is not None and is_url(asked):
        return _downloaded(str(asked), job)
    if asked is not None:
        return _last_sound(Path(asked), job)
    if output is None or job.checkpoint_on_disk is None or not _is_unfinished(output):
        return None
    return _last_sound(output, job)


def _last_sound(run: Path, job: Job) -> Checkpoint:
    """The last checkpoint of a run; if the run diverged, the last one from before that.

    A checkpoint from shortly before a loss was not finite may have the damage already.
    """
    newest = latest(run)
    words = _divergence(run)
    if not words:
        return newest
    sound = sound_until(words, job)
    found = newest
    if sound is not None:
        with contextlib.suppress(ValueError):
            found = latest(run, sound)
    if sound is None or found.samples > sound:
        found.diverged = (
            f"{words}, and no earlier checkpoint is known to be from before the damage: this one "
            "may have it"
        )
    elif found.samples < newest.samples:
        found.diverged = (
            f"{words}, so later checkpoints, up to {newest.samples:,} samples, were left out: they "
            "may have the damage"
        )
    else:
        found.diverged = f"{words}; this checkpoint is from before it"
    return found


def _divergence(run: Path) -> str:
    """Where the run of this folder diverged; empty if it did not, or if one checkpoint is named."""
    folder = run.parent if run.name == CHECKPOINTS else run
    if not (folder / TRACE).is_dir():
        return ""
    try:
        end = ending(read(folder))
    except (OSError, ValueError):
        return ""
    return end.words.splitlines()[0] if end.status == "failed" and _DIVERGED in end.words else ""


def _downloaded(url: str, job: Job) -> Checkpoint | None:
    """The last checkpoint at a URL; None if this run is the first to store any there."""
    folder = cache_folder() / "checkpoints" / hashlib.sha256(url.encode()).hexdigest()[:16]
    found = RemoteCheckpoints(url).download(folder)
    if found is None and (job.checkpoint is None or job.checkpoint.to != url):
        raise ValueError(
            f"there is no checkpoint at {url}: runs store them there with --checkpoint "
            f"'10min to {url}'"
        )
    for path in folder.iterdir() if found is not None else ():
        if found is not None and path != found.folder:
            shutil.rmtree(path, ignore_errors=True)
    return found


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
    if resumed.diverged:
        yield RunSetting("diverged", resumed.diverged, "command line")
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
