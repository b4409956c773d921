"""Checkpoints of a worker in memory that outlives it."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

import torch

from manyhands.files.checkpoints.memory import GENERATIONS, MemoryContent, MemoryFile
from manyhands.live.processes.available_memory import available
from manyhands.live.worker.checkpoints.host_ring import exchange, gather_kept

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manyhands.files.checkpoints import CheckpointPlace, MemberState
    from manyhands.files.checkpoints.memory import HandedOver
    from manyhands.live.worker.checkpoints.host_ring import HostRing
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
        ring: who keeps copies for another host; None on one host.
    """

    def __init__(
        self,
        paths: Sequence[str],
        group: Group,
        first: int,
        recorder: Recorder,
        ring: HostRing | None = None,
    ) -> None:
        self._paths, self._ring = paths, ring
        self._files = self._files_of(group.rank, group.size)
        guests = () if ring is None else ring.guests(group.rank)
        self._guests = {rank: self._files_of(rank, group.size) for rank in guests}
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
        about = torch.tensor([content.size, int(self._written)], device=self._group.device)
        all_ = torch.empty(self._group.size, len(about), dtype=about.dtype, device=about.device)
        # No worker completes this before all have begun it, so all have completed the generation
        # before: the older one may be overwritten.
        self._group.gather(all_, about)
        sizes, written = all_.T.tolist()
        total = sum(sizes)
        # If one worker could not write, its file of that generation is not whole: the same one is
        # written again, and the one before stays.
        if all(written):
            self._generation = (self._generation + 1) % GENERATIONS
        if total > self._room:
            self._measure(total)
        if not self._fits:
            return
        self._written = False
        try:
            self._files[self._generation].write(content)
            for rank, files in self._guests.items():
                files[self._generation].make_room(sizes[rank])
            has_room = True
        except OSError as error:
            _say(f"warning: a checkpoint was not kept in memory: {error.strerror or error}")
            has_room = False
        self._written = has_room
        if self._ring is not None:
            self._written = self._copy_to_next_host(self._ring, has_room)
        if not self._written:
            return
        self._stored += 1
        self._seconds += time.monotonic() - begun
        if self._group.rank == 0 and self._stored == 1:
            detail = {"samples": str(place.samples), "seconds": f"{self._seconds:.4f}"}
            self._recorder.event("checkpoint in memory", detail | {"bytes": str(total)})

    def _copy_to_next_host(self, ring: HostRing, has_room: bool) -> bool:
        """Exchange copies, if all workers have room for them; whether they were exchanged."""
        ready = torch.tensor([int(has_room)], device=self._group.device)
        self._group.sum(ready)
        # Agreed on before anything is sent: a worker without memory would not receive, and its
        # sender wait for ever.
        if int(ready) < self._group.size:
            return False
        guests = {rank: files[self._generation] for rank, files in self._guests.items()}
        exchange(self._group, ring, self._files[self._generation], guests)
        return True

    def gather(self) -> HandedOver | None:
        """The last checkpoint in the memory of all hosts, if there is one; on one host None.

        All workers call this before they store.
        """
        found = None if self._ring is None else gather_kept(self._group, self._ring, self._paths)
        if found is None:
            return None
        stored, generation = found
        self._generation = (generation + 1) % GENERATIONS
        return stored

    def _files_of(self, rank: int, workers: int) -> list[MemoryFile]:
        """The files of a worker on this host, for each generation."""
        return [MemoryFile(path) for path in self._paths[rank::workers]]

    def _measure(self, total: int) -> None:
        """Decide whether two generations fit into the memory of every host."""
        free = available()[0]
        need = GENERATIONS * (total - self._room)
        fits = torch.tensor([int(need <= _MOST * free)], device=self._group.device)
        own = bool(fits)
        self._group.sum(fits)
        self._fits = int(fits) == self._group.size
        if self._fits:
            self._room = total
        elif not own and self._group.rank in (self._ring.first if self._ring else (0,)):
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
