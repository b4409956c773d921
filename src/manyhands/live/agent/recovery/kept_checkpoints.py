"""Checkpoints in memory: the agent holds it for the workers, and survives each of them."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from manyhands.files.checkpoints.memory import GENERATIONS, complete, link, samples_in
from manyhands.live.agent.recovery.elasticity import rigidity
from manyhands.live.devices import devices
from manyhands.script.origin import override
from manyhands.transport.shared.memory import can_share, reserve

if TYPE_CHECKING:
    from collections.abc import Iterator

    from manyhands.files.checkpoints import Manifest
    from manyhands.live.request import Request


class KeptGeneration(NamedTuple):
    """A complete generation in memory."""

    number: int
    """Which of the two it is."""
    manifest: Manifest


class KeptCheckpoints:
    """The memory for the checkpoints of a run, over all of its attempts.

    Args:
        workers: the number of workers.
    """

    def __init__(self, workers: int) -> None:
        self._files = [[reserve() for _ in range(workers)] for _ in range(GENERATIONS)]
        self._manifest = (reserve(), reserve())
        self._folder: Path | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        """Where workers open the memory: their files for the first generation, then the second."""
        return tuple(_path(one) for files in self._files for one in files)

    def newest(self, workers: int) -> int:
        """The most samples of which this host has the states of its own first workers; or 0."""
        files = (samples[:workers] for samples in self._files)
        return max(0, *(min(samples_in(_path(one)) for one in own) for own in files))

    def all(self) -> list[KeptGeneration]:
        """The generations that are complete."""
        return [
            KeptGeneration(number, manifest)
            for number, files in enumerate(self._files)
            if (manifest := complete(files)) is not None
        ]

    def last(self, most: int | None = None) -> KeptGeneration | None:
        """The latest complete generation, after at most so many samples; None without any."""
        found = [one for one in self.all() if most is None or one.manifest.samples <= most]
        return max(found, key=lambda one: one.manifest.samples, default=None)

    def take(self, generation: KeptGeneration) -> Path:
        """A folder that is read as a checkpoint, whose files are links to the memory."""
        self.release()
        # The folder has only links; it is removed with the run.
        self._folder = Path(tempfile.mkdtemp(prefix="manyhands-"))
        folder = self._folder / "memory"
        paths = [_path(one) for one in self._files[generation.number]]
        link(folder, generation.manifest, paths, self._manifest)
        return folder

    def forget(self, kept: int | None) -> int:
        """Free all generations but one; which one the workers write first.

        What is left of a generation that was not completed must not be taken for a part of the
        next one.
        """
        for number, files in enumerate(self._files):
            for one in files if number != kept else ():
                os.ftruncate(one, 0)
        return 0 if kept is None else (kept + 1) % GENERATIONS

    def release(self) -> None:
        """Remove the folder with links, if there is one."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def close(self) -> None:
        """Free the memory."""
        self.release()
        for one in (*(one for files in self._files for one in files), *self._manifest):
            os.close(one)


def check_kept(request: Request) -> None:
    """Raise ValueError if checkpoints cannot be kept in memory where the user asks for it."""
    if override(request.job, request.overrides).checkpoint_in_memory is None:
        return
    several = request.hosts is not None and len(request.hosts.names) > 1
    if several and request.here in (0, request.workers):
        raise ValueError(
            "checkpoints in memory of several hosts need workers on the first host and on another "
            "one, which keeps copies: store them in a folder that all hosts share "
            "(--checkpoint 10min)"
        )
    if several and {*devices(request.here)} != {"cpu"}:
        raise ValueError(
            "checkpoints are not copied to the memory of other hosts from GPUs: store them in a "
            "folder that all hosts share (--checkpoint 10min)"
        )
    if not can_share():
        raise ValueError("checkpoints in memory need Linux (memfd_create): leave out 'in memory'")


def unneeded(request: Request) -> str:
    """Why checkpoints that were to be kept in memory are not; empty if they are, or none were."""
    if override(request.job, request.overrides).checkpoint_in_memory is None or _is_kept(request):
        return ""
    return (
        f"no checkpoint is kept in memory: under {request.strategy} the other workers continue "
        "without one that is killed; a run that diverges goes back to one on the disk "
        "(--checkpoint 10min)"
    )


def _is_kept(request: Request) -> bool:
    job, needs = override(request.job, request.overrides), request.strategy.needs(request.workers)
    return job.checkpoint_in_memory is not None and needs.collectives and bool(rigidity(request))


@contextlib.contextmanager
def keeping(request: Request) -> Iterator[KeptCheckpoints | None]:
    """The memory for the checkpoints of a run; None if it keeps none in memory."""
    if not _is_kept(request):
        yield None
        return
    kept = KeptCheckpoints(request.workers)
    try:
        yield kept
    finally:
        kept.close()


def _path(descriptor: int) -> str:
    return f"/proc/{os.getpid()}/fd/{descriptor}"
