"""Checkpoints of a worker in memory that outlives it."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

import torch

from manyhands.files.checkpoints.memory import GENERATIONS, MemoryContent, MemoryFile
from manyhands.live.processes.available_memory import available

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manyhands.files.checkpoints import CheckpointPlace, MemberState
    from manyhands.trace import Recorder
    from manyhands.transport.collectives import Group

_MOST: Final = 0.8
"""The fraction of the available memory that two generations may take."""


class MemoryCopies:
    """The two generations of one worker's state in memory.

    All workers write the same generation. Before that they exchange one sum, which none completes
    before all have begun it: then all have completed the generation before, and the one that they
    overwrite is not needed any more.

    Args:
        paths: where the files can be opened: those of all workers for the first generation, then
            those for the second.
        group: all workers.
        first: which generation is written first; the other one may hold the state that the run
            continues from.
        recorder: this worker's trace.
    """

    def __init__(self, paths: Sequence[str], group: Group, first: int, recorder: Recorder) -> None:
        mine = paths[group.rank :: group.size]
        self._files = [MemoryFile(path) for path in mine]
        self._member = f"worker-{group.rank}"
        self._group, self._generation, self._recorder = group, first, recorder
        self._written = False
        """Whether this worker has completed the generation that was written last."""
        self._room = 0
        """Bytes of one generation that were found to fit."""
        self._fits = True
        self._stored, self._seconds = 0, 0.0

    def store(self, place: CheckpointPlace, state: MemberState) -> None:
        """Copy the state; all workers call it after the same step."""
        begun = time.monotonic()
        content = MemoryContent(self._member, place, state)
        about = [content.size, int(self._written)]
        sums = torch.tensor(about, dtype=torch.int64, device=self._group.device)
        self._group.sum(sums)
        total, written = sums.tolist()
        if written == self._group.size:
            self._generation = (self._generation + 1) % GENERATIONS
        if total > self._room:
            self._measure(total)
        if not self._fits:
            return
        self._written = False
        try:
            self._files[self._generation].write(content)
        except OSError as error:
            _say(f"warning: a checkpoint was not kept in memory: {error.strerror or error}")
            return
        self._written = True
        self._stored += 1
        self._seconds += time.monotonic() - begun
        if self._group.rank == 0 and self._stored == 1:
            detail = {"samples": str(place.samples), "seconds": f"{self._seconds:.4f}"}
            self._recorder.event("checkpoint in memory", detail | {"bytes": str(total)})

    def _measure(self, total: int) -> None:
        """Decide whether two generations fit into the memory of this host."""
        free = available()[0]
        need = GENERATIONS * (total - self._room)
        verdict = torch.tensor([need <= _MOST * free], dtype=torch.int64, device=self._group.device)
        self._group.broadcast(verdict)
        self._fits = bool(verdict)
        if self._fits:
            self._room = total
        elif self._group.rank == 0:
            _say(
                f"warning: checkpoints are not kept in memory: two of them need {need / 1e9:.2g} "
                f"GB, and {free / 1e9:.2g} GB are available, of which {_MOST:.0%} are used for "
                "them; store them on the disk (--checkpoint 10min)"
            )

    def close(self) -> None:
        """Record how many were kept, and the seconds that it took."""
        if self._group.rank == 0 and self._stored:
            detail = {"count": str(self._stored), "seconds": f"{self._seconds:.4f}"}
            self._recorder.event("checkpoints in memory", detail)


def _say(words: str) -> None:
    sys.stderr.write(f"{words}\n")
    sys.stderr.flush()
