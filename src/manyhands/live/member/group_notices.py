"""What the coordinator has announced about a worker's process group.

The heartbeat thread receives the announcements; the main thread forms groups and waits for the next
one. A group that is replaced is freed here, so that the main thread comes out of its collective.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from manyhands.failure import PeerLost
from manyhands.live.processes.incarnation import incarnation
from manyhands.wire.regrouping import BREAK, FAILED, NOW, OVER, GroupReport, Regroup

if TYPE_CHECKING:
    from manyhands.transport.collectives import Group


class RunOver(Exception):  # noqa: N818 - an event: the run ended while this worker waited
    """Other workers have finished the run, and the model is stored."""


class RowLeftOut(Exception):  # noqa: N818 - an event
    """The others have formed a group without this worker: it begins again, without a state."""


class GroupNotices:
    """The announcements to one worker, and its report on them.

    Args:
        rank: the worker's rank.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._changed = threading.Condition()
        self._heard = (0, 0)
        self._notice: Regroup | None = None
        """The latest group that exists."""
        self._pending: Regroup | None = None
        """The next group, with newcomers."""
        self._group: Group | None = None
        self._broken = 0
        self._waits = False
        self._over = False
        self._failed = False
        self.dealt = 0
        """Samples of completed steps, for the report."""
        self.repeated = 0
        """Samples of repeated steps, for the report."""
        self.lost = 0
        """Samples of steps that were not taken, for the report."""
        self.urgent = threading.Event()
        """Set when the coordinator should have the report without delay."""

    def receive(self, notice: Regroup) -> None:
        """Process an announcement; called by the heartbeat thread."""
        with self._changed:
            # The coordinator repeats an announcement until a heartbeat shows that it was heard; one
            # of a former epoch may come after a later one.
            if (notice.epoch, notice.stage) <= self._heard:
                return
            self._heard = (notice.epoch, notice.stage)
            group = self._group
            if notice.stage >= OVER:
                self._over, self._failed = True, notice.stage == FAILED
                outdated = notice.stage >= BREAK
            elif notice.stage == NOW:
                self._notice = notice
                outdated = group is not None and group.epoch < notice.epoch
                if self._pending is not None and self._pending.epoch <= notice.epoch:
                    self._pending = None
            else:
                self._pending, outdated = notice, False
            if group is not None and outdated:
                # With the lock held, so that the main thread cannot enter another group in between,
                # which would be freed instead.
                group.free()
            self._changed.notify_all()
        self.urgent.set()

    def report(self) -> GroupReport:
        """What this worker has heard, and its present group."""
        with self._changed:
            # Before the state is read: what changes after this line sets it again, and is reported
            # next.
            self.urgent.clear()
            return GroupReport(
                life=incarnation(),
                epoch=self._heard[0],
                stage=self._heard[1],
                formed=self._group.epoch if self._group is not None else 0,
                broken=self._broken,
                waits=self._waits,
                dealt=self.dealt,
                repeated=self.repeated,
                lost=self.lost,
            )

    @property
    def pending(self) -> Regroup | None:
        """The next group, if newcomers are ready."""
        return self._pending

    def is_outdated(self, epoch: int) -> bool:
        """Whether a later group than this one was announced, or the run is over."""
        notice = self._notice
        return self._over or (notice is not None and notice.epoch > epoch)

    def enter(self, group: Group) -> None:
        """Report that this worker is in a group."""
        with self._changed:
            self._group, self._waits = group, False
            if self._pending is not None and self._pending.epoch <= group.epoch:
                self._pending = None
            # The announcement of the next group may have come while this one was being formed, when
            # there was no group to free; the first collective would wait for a lost worker.
            if self.is_outdated(group.epoch):
                group.free()
        self.urgent.set()

    def leave(self, epoch: int, *, broken: bool) -> None:
        """Report that the group of an epoch is no longer used, or could not be formed."""
        with self._changed:
            self._group = None
            if broken:
                self._broken = epoch
        self.urgent.set()

    def next_group(self, after: int, *, stays: bool = True) -> Regroup:
        """Wait until a later group with this worker is announced.

        Args:
            after: the epoch of the last group.
            stays: whether to wait also if a later one without it is announced.

        Raises:
            RowLeftOut: there is a later one without it, and it does not stay.
            RunOver: the run is over.
            PeerLost: another worker has failed with an error.
        """
        with self._changed:
            while True:
                notice = self._notice
                later = notice is not None and notice.epoch > after
                # Before the end of the run, which is set as well: a worker that ends because of
                # another's error must not count as finished.
                if self._failed:
                    raise PeerLost(f"worker {self._rank} ends, because another one has failed")
                if self._over:
                    raise RunOver
                if notice is not None and later and self._rank in notice.ranks:
                    return notice
                if later and not stays:
                    raise RowLeftOut
                # A worker that is no member, or none yet, asks to be one.
                self._waits = notice is None or self._rank not in notice.ranks
                self.urgent.set()
                self._changed.wait(1.0)
