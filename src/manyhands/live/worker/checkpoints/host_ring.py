"""Copies of checkpoints in the memory of another host, and how they are found after a loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from manyhands.files.checkpoints.memory import GENERATIONS, HandedOver, MemoryFile, samples_in
from manyhands.live.hosts.host_list import Hosts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from manyhands.transport.collectives import Group

_HEAD = 8
"""Bytes by which a file is whole: they are written last."""


class HostRing:
    """Which worker keeps a copy of another one's state: one of the next host.

    Args:
        hosts: all hosts in order, each with its number of workers.

    >>> ring = HostRing((("a", 2), ("b", 1), ("c", 2)))
    >>> [ring.keeper(rank) for rank in range(5)]
    [2, 2, 3, 0, 1]
    >>> ring.guests(2), ring.first
    ([0, 1], [0, 2, 3])
    """

    def __init__(self, hosts: tuple[tuple[str, int], ...]) -> None:
        self._ranks = [Hosts(hosts).ranks(name) for name, count in hosts if count]
        self.first = [ranks.start for ranks in self._ranks]
        """The first worker of each host."""

    def keeper(self, rank: int) -> int:
        """The worker that keeps a copy of a worker's state."""
        at = next(at for at, ranks in enumerate(self._ranks) if rank in ranks)
        following = self._ranks[(at + 1) % len(self._ranks)]
        return following[(rank - self._ranks[at].start) % len(following)]

    def guests(self, rank: int) -> list[int]:
        """The workers of whose states a worker keeps copies."""
        return [one for ranks in self._ranks for one in ranks if self.keeper(one) == rank]


def exchange(
    group: Group, ring: HostRing, own: MemoryFile, guests: Mapping[int, MemoryFile]
) -> None:
    """Send this worker's file to the worker that keeps a copy, and receive those it keeps.

    Args:
        group: all workers.
        ring: who keeps what.
        own: this worker's file, which is whole.
        guests: by rank, the files for copies, with room for them; afterwards they are whole.
    """
    content, keeper = own.content, ring.keeper(group.rank)
    heads = {rank: torch.zeros(_HEAD, dtype=torch.uint8) for rank in guests}
    with group.watched():
        works = [group.send(content[:_HEAD], keeper), group.send(content[_HEAD:], keeper)]
        for rank, file in guests.items():
            works.append(group.receive(heads[rank], rank))
            works.append(group.receive(file.content[_HEAD:], rank))
        for work in works:
            work.wait()
    for rank, file in guests.items():
        # Last, when all else has arrived: a file is taken for whole by these bytes.
        file.content[:_HEAD].copy_(heads[rank])


def gather_kept(
    group: Group, ring: HostRing, paths: Sequence[str]
) -> tuple[HandedOver, int] | None:
    """The last checkpoint that is in the memory of hosts; every host has all of it afterwards.

    What a host has lost, or has never had, is sent by one that has it. All workers call this.

    Args:
        group: all workers.
        ring: who keeps what.
        paths: where the files of this host can be opened: those of all workers for the first
            generation, then those for the second.

    Returns:
        The checkpoint and its generation; None if there is none.
    """
    own = torch.tensor([samples_in(path) for path in paths])
    table = torch.empty(group.size, len(paths), dtype=own.dtype)
    group.gather(table, own)
    found = latest_whole(table)
    if found is None:
        return None
    generation, samples = found
    part = slice(generation * group.size, (generation + 1) * group.size)
    here = paths[part]
    for rank, path in enumerate(here):
        has = (table[:, part][:, rank] == samples).tolist()
        holder = rank if has[rank] else has.index(True)
        for taker in ring.first:
            if not has[taker]:
                _send_file(group, holder, taker, path)
    if group.rank in ring.first:
        # What is left of other cuts must not be taken for a part of the next one.
        for path in (*paths[: part.start], *paths[part.stop :]):
            MemoryFile(path).clear()
    # No worker goes on, and writes a new generation, before all hosts have their files.
    group.sum(torch.zeros(1))
    return HandedOver(here), generation


def latest_whole(table: torch.Tensor) -> tuple[int, int] | None:
    """The generation, and its samples, of which every worker's file is in the memory of a host.

    Args:
        table: by worker, the samples of the files that its host has, -1 for none: of all workers
            for the first generation, then for the second.

    >>> latest_whole(torch.tensor([[40, 40, 80, -1], [40, 40, -1, -1]]))
    (0, 40)
    >>> latest_whole(torch.tensor([[40, 40, 80, 80], [-1, -1, -1, -1]]))
    (1, 80)
    """
    workers = len(table)
    best: tuple[int, int] | None = None
    for generation in range(GENERATIONS):
        files = table[:, generation * workers : (generation + 1) * workers]
        for samples in {int(one) for one in files.flatten() if one >= 0}:
            whole = bool((files == samples).any(dim=0).all())
            if whole and (best is None or samples > best[1]):
                best = (generation, samples)
    return best


def _send_file(group: Group, holder: int, taker: int, path: str) -> None:
    """Send a whole file from one host to another, which has none."""
    with group.watched():
        if group.rank == holder:
            content = MemoryFile(path).content
            group.send(torch.tensor([len(content)]), taker).wait()
            for part in (content[:_HEAD], content[_HEAD:]):
                group.send(part, taker).wait()
        elif group.rank == taker:
            size, head = torch.zeros(1, dtype=torch.int64), torch.zeros(_HEAD, dtype=torch.uint8)
            group.receive(size, holder).wait()
            file = MemoryFile(path)
            file.make_room(int(size))
            group.receive(head, holder).wait()
            group.receive(file.content[_HEAD:], holder).wait()
            file.content[:_HEAD].copy_(head)
