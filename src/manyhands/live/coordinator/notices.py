"""Notices of the coordinator to servers and peers: who was lost, and who has returned.

They are numbered in one sequence, and each is sent until a heartbeat confirms it: a server that was
restarted after a loss would otherwise wait for the lost worker for ever
(`docs/decisions/0043-fences.md`). So a member is told of a loss before it is told of the return of
the successor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.wire.leasing import Fence, Rejoined

if TYPE_CHECKING:
    from collections.abc import Sequence

_AT_ONCE = 256
"""The most notices that are sent again in answer to one heartbeat."""


class MemberNotices:
    """All notices of a run, in order.

    >>> notices = MemberNotices()
    >>> notices.fence("worker-2", 2)
    Fence(name='worker-2', least=2, number=0)
    >>> notices.rejoin("worker-2", 2, 3).number
    1
    >>> [type(notice).__name__ for notice in notices.current]
    ['Rejoined']
    """

    def __init__(self) -> None:
        self._all: list[Fence | Rejoined] = []
        self.expected: set[str] = set()
        """Peers that were restarted and have no replica yet, so that others do not call them."""

    def __len__(self) -> int:
        return len(self._all)

    def fence(self, name: str, least: int) -> Fence:
        """A worker is lost: its incarnations before `least` are over."""
        # It was lost before it had a replica: a late request of it for samples must not announce
        # it.
        self.expected.discard(name)
        notice = Fence(name, least, len(self._all))
        self._all.append(notice)
        return notice

    def rejoin(
        self, name: str, life: int, epoch: int, host: str = "", address: str = ""
    ) -> Rejoined:
        """A peer that was restarted has a replica; arguments as of `Rejoined`."""
        self.expected.discard(name)
        notice = Rejoined(name, life, epoch, host, address, len(self._all))
        self._all.append(notice)
        return notice

    def unconfirmed(self, confirmed: int) -> Sequence[Fence | Rejoined]:
        """Notices that a member lacks which has confirmed the first ones."""
        # In order and without a gap: a heartbeat confirms a number of notices, not single ones. The
        # limit keeps a restarted member of a long run from being sent thousands at once.
        return self._all[confirmed : confirmed + _AT_ONCE]

    @property
    def current(self) -> tuple[Fence | Rejoined, ...]:
        """The last notice about each worker, in order."""
        last = {notice.name: notice for notice in self._all}
        return tuple(sorted(last.values(), key=lambda notice: notice.number))
