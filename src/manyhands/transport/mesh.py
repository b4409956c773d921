"""Device mesh: workers on a grid with named axes, and the process groups of each axis."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from manyhands.engine.fake_tensors import is_fake
from manyhands.engine.mesh import device_mesh, enter, leave
from manyhands.engine.watched_group import WatchedGroup
from manyhands.transport.shared.layout import CHUNK

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.distributed.device_mesh import DeviceMesh

    from manyhands.engine.watched_group import Watcher
    from manyhands.transport.collectives import Group
    from manyhands.transport.shared.exchange import SharedExchange


class Mesh:
    """The workers of a group on a grid; the last axis varies fastest.

    `groups[axis]` is the group of workers that differ from this one only in that axis; `handle` is
    the mesh as torch's `DeviceMesh`, and `handles[axis]` are its process groups.

    Args:
        group: all workers.
        axes: the names of the axes and their sizes.
        watcher: notified of every collective that torch's engine executes on the mesh.
        shares_memory: whether workers of an axis that are on one host exchange in memory that they
            share, where they can.
    """

    def __init__(
        self,
        group: Group,
        axes: Mapping[str, int],
        watcher: Watcher,
        *,
        shares_memory: bool = False,
    ) -> None:
        if math.prod(axes.values()) != group.size:
            raise ValueError(f"a mesh of {describe(axes)} does not fit {group.size} workers")
        self.axes = dict(axes)
        self.place = coordinates(group.rank, axes)
        self.groups: dict[str, Group] = {}
        device, known = group.device.type, {tuple(range(group.size)): group}
        for axis in axes:
            ranks = tuple(_line(self.place, axis, axes))
            # Axes of length one share the group of this worker alone.
            if ranks not in known:
                known[ranks] = group.part(axis, ranks)
            self.groups[axis] = known[ranks]
        shared: dict[Group, SharedExchange | None] = {}
        if shares_memory and not is_fake():
            shared = {ours: ours.shared_exchange(CHUNK) for ours in self.groups.values()}
        self._in_memory = [axis for axis, ours in self.groups.items() if shared.get(ours)]
        self._entered = {
            ranks: WatchedGroup(ours.handle, device, watcher, shared.get(ours))
            for ranks, ours in known.items()
        }
        for ranks, watched in self._entered.items():
            enter(watched, ranks, default=len(ranks) == group.size)
        group.at_close.append(self._close)
        self.handles = {axis: self._entered[tuple(_line(self.place, axis, axes))] for axis in axes}
        self.handle: DeviceMesh = device_mesh(device, axes, self.handles)

    @property
    def words(self) -> tuple[str, ...]:
        """Where workers exchange, if it is not over connections, in a line for the log."""
        if not self._in_memory:
            return ()
        used = [axis for axis, size in self.axes.items() if size > 1]
        along = "" if self._in_memory == used else f" along {', '.join(self._in_memory)}"
        return (f"exchanges: in memory that the workers share{along}",)

    def _close(self) -> None:
        """Remove the groups from torch's registry."""
        for entered in reversed(self._entered.values()):
            leave(entered)


def coordinates(rank: int, axes: Mapping[str, int]) -> dict[str, int]:
    """The coordinates of a worker on the grid.

    >>> coordinates(5, {"data": 2, "shard": 2, "tensor": 2})
    {'data': 1, 'shard': 0, 'tensor': 1}
    """
    place: dict[str, int] = {}
    for axis, size in reversed(list(axes.items())):
        rank, place[axis] = divmod(rank, size)
    return {axis: place[axis] for axis in axes}


def _line(place: Mapping[str, int], axis: str, axes: Mapping[str, int]) -> list[int]:
    """The ranks that differ from the one at `place` only in one axis."""
    ranks = []
    for at in range(axes[axis]):
        rank = 0
        for name, size in axes.items():
            rank = rank * size + (at if name == axis else place[name])
        ranks.append(rank)
    return ranks


def describe(axes: Mapping[str, int]) -> str:
    """A mesh as text.

    >>> describe({"data": 2, "shard": 4})
    'data 2 × shard 4 = 8'
    """
    return " × ".join(f"{axis} {size}" for axis, size in axes.items()) + (
        f" = {math.prod(axes.values())}"
    )
