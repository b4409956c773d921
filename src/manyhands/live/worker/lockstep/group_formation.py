"""Process groups of one worker, one after the other, as members are lost and join."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from manyhands.engine import PrefixStore
from manyhands.live.processes.incarnation import incarnation
from manyhands.transport.collectives import LOOPBACK, Group
from manyhands.wire.regrouping import SWITCH

if TYPE_CHECKING:
    import torch

    from manyhands.engine import Store
    from manyhands.live.member.group_notices import GroupNotices
    from manyhands.wire.regrouping import Regroup

_FORMING = 10.0
"""Seconds in which members that have met in the store must be connected. A member that dies in
just this moment delays the others for as long."""
_ATTEMPTS = 5
"""Groups of a worker in a row that may fail to connect."""
_FIRST_POLL, _LONGEST_POLL = 0.001, 0.02


class GroupFormation:
    """Forms the groups that the coordinator announces.

    Args:
        store: the store for the rendezvous.
        rank: this worker's rank in the run.
        notices: the coordinator's announcements.
        device: device of the tensors.
        address: the local address to which sockets are bound.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        notices: GroupNotices,
        device: torch.device,
        address: str = LOOPBACK,
    ) -> None:
        self._store = store
        self.rank = rank
        self.notices = notices
        self._device = device
        self._address = address
        self._chosen = 0
        """The epoch of the last group for which this worker has chosen a step."""

    def alone(self) -> Group:
        """A group of this worker only, which it has until it joins others."""
        store = PrefixStore(f"alone-{self.rank}.{incarnation()}", self._store)
        names = (self.rank,)
        return Group(store, 0, 1, epoch=0, device=self._device, address=self._address, names=names)

    def next(self, after: int, planned: Regroup | None = None, *, stays: bool = True) -> Group:
        """Wait for the next group with this worker, and form it.

        Args:
            after: the epoch of the last group.
            planned: the group that all members form at this step, if there is one.
            stays: whether to wait also if a group without this worker is announced.

        Raises:
            RowLeftOut: there is one without it, and it does not stay.
            RunOver: the run is over.
            RuntimeError: the members could not be connected.
        """
        failures = 0
        while True:
            notice = planned or self.notices.next_group(after, stays=stays)
            planned = None
            try:
                group = self._form(notice)
            except RuntimeError:
                failures += 1
                if failures == _ATTEMPTS:
                    raise
                # Without this report the coordinator takes the group for one that is still being
                # formed.
                self.notices.leave(notice.epoch, broken=True)
            else:
                if group is not None:
                    self.notices.enter(group)
                    return group
            after = notice.epoch

    def _form(self, notice: Regroup) -> Group | None:
        """Connect to the members of a group; None if a later one was announced meanwhile.

        Connecting to a process that has died takes its whole timeout, so it begins when all
        members are there.
        """
        key, size = f"manyhands/met-{notice.epoch}", len(notice.ranks)
        # Counted in the store first: connecting takes its whole timeout if one of the members has
        # died before it.
        met, pause = self._store.add(key, 1), _FIRST_POLL
        while met < size:
            # A member that died before it came here is left out of a later group, which would wait
            # for this worker.
            if self.notices.is_outdated(notice.epoch):
                return None
            time.sleep(pause)
            pause = min(1.5 * pause, _LONGEST_POLL)
            met = self._store.add(key, 0)
        return Group(
            self._store,
            notice.ranks.index(self.rank),
            size,
            epoch=notice.epoch,
            device=self._device,
            address=self._address,
            names=notice.ranks,
            forming=_FORMING,
        )

    def due(self, step: int) -> Regroup | None:
        """The group that all members form before this step, if there is one.

        The first member chooses the next step when it is asked to: it has not begun the present
        one, so no member has completed it, and all see the choice before that step.
        """
        pending = self.notices.pending
        if pending is None:
            return None
        key = f"manyhands/begins-{pending.epoch}"
        if pending.stage == SWITCH and self._chosen < pending.epoch:
            # Once for each group: a second step in the store would be seen by some members and not
            # by others.
            self._chosen = pending.epoch
            self._store.set(key, str(step + 1))
            return None
        if not self._store.check([key]) or int(self._store.get(key)) != step:
            return None
        return pending
