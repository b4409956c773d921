"""The groups of a lockstep run whose workers may be lost and replaced.

Workers that step together are a group, numbered by the epoch of its members. The coordinator
announces a group; its members meet in the store under the epoch's name. There are two ways from one
group to the next:

- A member is lost: the remaining ones are the next group at once. They are released from whatever
  collective they are in, and repeat the operation that was interrupted.
- Newcomers are ready: no step may be interrupted for them. All members are first told of the next
  group (`PREPARE`). When all have confirmed, the first one is asked to choose a step (`SWITCH`): it
  writes the number of the next step to the store before it begins the present one. No member
  completes a step that the first one has not begun, so each of them finds that number in the
  store in time. The group counts as formed when a member reports it; until then the loss of
  any worker returns to the members that were there before.

Workers that hold parts of one replica are a row, of as many ranks as every other one. If one of
them is lost, its row is left out, because the others of it hold nothing that is complete. They
wait, and are newcomers when all workers of the row wait.

Only workers that were told of a group can meet in it, so a worker of an earlier epoch, which was
stopped or cut off meanwhile, reaches no member of a later one.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from manyhands.wire.regrouping import (
    BREAK,
    FAILED,
    NOW,
    OVER,
    PREPARE,
    SWITCH,
    GroupReport,
    Regroup,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

BROKEN_FOR = 2.0
"""Seconds after which a group is replaced by one of the same members, if its collectives fail and
no member is lost: a connection between two of them was reset."""


@dataclass
class _NextGroup:
    """A group with newcomers that does not exist yet."""

    epoch: int
    ranks: dict[str, int]
    """By name, the ranks of all members."""
    newcomers: frozenset[str]
    confirmed: set[str] = field(default_factory=set)
    """Present members that have heard of it."""


class RegroupingState(msgspec.Struct, frozen=True):
    """The state of a `Regrouping`; what workers report with every heartbeat is not part of it."""

    members: dict[str, int]
    epoch: int
    last: int
    over: bool
    stage: int
    pending: tuple[int, dict[str, int], tuple[str, ...], tuple[str, ...]] | None
    """The next group: epoch, members, newcomers, and members that have heard of it."""


class Regrouping:
    """The present and the next group of a run.

    Args:
        send: sends a message to workers by name.
        clock: a source of seconds.
        row: the number of workers of a row; 1 if each has a whole replica.

    Attributes:
        note: receives the state after every change; None for nobody.

    >>> sent = []
    >>> groups = Regrouping(lambda names, message: sent.append((*names, message)), lambda: 0.0)
    >>> groups.begin({"worker-0": 0, "worker-1": 1})
    >>> groups.lose("worker-1")
    True
    >>> sent[-1]
    ('worker-0', Regroup(epoch=2, ranks=(0,), stage=2))
    """

    def __init__(
        self,
        send: Callable[[Iterable[str], Regroup], object],
        clock: Callable[[], float],
        row: int = 1,
    ) -> None:
        self._row = row
        self._send = send
        self._clock = clock
        self.note: Callable[[RegroupingState], object] | None = None
        self._noted: RegroupingState | None = None
        self._members: dict[str, int] = {}
        self.epoch = 0
        """The epoch of the present group."""
        self._last = 0
        """The last epoch that was given to a group."""
        self._formed: set[str] = set()
        """Members that have reported the present group."""
        self._waiting: dict[str, int] = {}
        """Newcomers that are ready for a group, with their ranks."""
        self._next: _NextGroup | None = None
        self._broken_since: float | None = None
        self.over = False
        """Whether a worker has finished the run."""
        self._stage = OVER
        self.dealt = 0
        """Samples of completed steps."""
        self.repeated = 0
        """Samples of repeated steps."""
        self.lost = 0
        """Samples of steps that were not taken."""

    @property
    def members(self) -> Mapping[str, int]:
        """The members of the present group, with their ranks."""
        return self._members

    def state(self) -> RegroupingState:
        """The state, for a successor."""
        pending = self._next
        following = None
        if pending is not None:
            newcomers, confirmed = sorted(pending.newcomers), sorted(pending.confirmed)
            following = (pending.epoch, dict(pending.ranks), tuple(newcomers), tuple(confirmed))
        members = dict(self._members)
        return RegroupingState(members, self.epoch, self._last, self.over, self._stage, following)

    def restore(self, state: RegroupingState) -> Mapping[str, int]:
        """Continue from a state, and return the members, who report again what they formed."""
        self._members, self.epoch, self._last = dict(state.members), state.epoch, state.last
        self.over, self._stage = state.over, state.stage
        # Which members have formed the group is not in the journal: each says so again in its next
        # heartbeat.
        self._formed, self._broken_since, self._next = set(), None, None
        if state.pending is not None:
            epoch, ranks, newcomers, confirmed = state.pending
            self._next = _NextGroup(epoch, dict(ranks), frozenset(newcomers), set(confirmed))
        return self._members

    def account(self) -> tuple[int, int, int]:
        """Samples of the run: seen, repeated, lost."""
        return self.dealt - self.lost, self.repeated, self.lost

    def _note_change(self) -> None:
        """Note the state if it has changed."""
        if self.note is not None:
            state = self.state()
            if state != self._noted:
                self._noted = state
                self.note(state)

    def begin(self, ranks: Mapping[str, int]) -> None:
        """Announce the first group."""
        self._members = dict(ranks)
        self._announce()

    def lose(self, name: str) -> bool:
        """Note that a worker is lost; return whether the present group changes."""
        self._waiting.pop(name, None)
        if self.over:
            # The others wait for it in the last collective of the run.
            self._stage = max(self._stage, BREAK)
            self._members.pop(name, None)
            self._note_change()
            self._send(self._members, self._end())
            return False
        pending = self._next
        # Once all members know, the first one may have written the step at which the group begins,
        # and the others would wait in it for the lost newcomer. Before that the group is just
        # dropped, and no step is interrupted (`tests/leasing/test_regrouping.py`).
        expected = pending is not None and name in pending.newcomers and _all_know(pending)
        if pending is not None and name in pending.ranks:
            self._next = None
        if name in self._members or expected:
            self._announce(self._leave_out(name))
            return True
        return False

    def _leave_out(self, name: str) -> list[str]:
        """Remove a lost worker, and its row; return the others of the row."""
        rank = self._members.pop(name, None)
        if rank is None:
            return []
        row = [other for other, at in self._members.items() if at // self._row == rank // self._row]
        for other in row:
            del self._members[other]
        return row

    def leave(self, name: str, *, failed: bool = False) -> None:
        """Note that a worker has finished, or failed with an error: the run is over."""
        self.over = True
        if failed:
            self._stage = FAILED
        self._waiting.pop(name, None)
        self._members.pop(name, None)
        self._note_change()
        self._send((*self._members, *self._waiting), self._end())

    def report(self, name: str, rank: int, report: GroupReport) -> list[str]:
        """Note the report of a worker; return newcomers that have joined the group by it."""
        # Reports arrive in any order, and survivors may be one operation apart: a count never goes
        # back.
        self.dealt = max(self.dealt, report.dealt)
        self.repeated = max(self.repeated, report.repeated)
        self.lost = max(self.lost, report.lost)
        # The report of a successor may come before the loss of its predecessor is known. While the
        # name is that of a member it is no newcomer: it would be waited for twice.
        if report.waits and self.epoch and name not in self._members and not self.over:
            self._waiting[name] = rank
        joined: list[str] = []
        pending = self._next
        # One report is enough: a group is formed by all of its members or by none.
        if pending is not None and report.formed == pending.epoch:
            joined = sorted(pending.newcomers)
            self._members, self.epoch, self._next = pending.ranks, pending.epoch, None
            # What was broken was the group before; this one would be replaced for it.
            self._formed, self._broken_since = set(), None
            for newcomer in joined:
                self._waiting.pop(newcomer, None)
            self._note_change()
        elif pending is not None and name in self._members and report.epoch >= pending.epoch:
            self._confirm(name, pending)
        if report.formed == self.epoch and name in self._members:
            self._formed.add(name)
        self._note_broken(name, report)
        self._prepare()
        # A notice may be lost with a connection or with a coordinator. A heartbeat says what its
        # sender has heard of, and what it lacks is sent again.
        wanted = self._notice_for(name)
        if wanted is not None and (wanted.epoch, wanted.stage) > (report.epoch, report.stage):
            self._send((name,), wanted)
        return joined

    def check_timers(self) -> None:
        """Replace a group whose connections are broken, although no member was lost."""
        since = self._broken_since
        if since is not None and self._clock() - since > BROKEN_FOR and not self.over:
            self._next = None
            self._announce()

    def _note_broken(self, name: str, report: GroupReport) -> None:
        # A report about an earlier group may arrive late; only the present one can be broken.
        broken = name in self._members and report.broken == self.epoch and self._next is None
        if broken and self._broken_since is None:
            self._broken_since = self._clock()

    def _announce(self, left_out: Iterable[str] = ()) -> None:
        """Make the members the present group, from now on."""
        # A number is never used twice, also if its group is dropped: members that have heard of
        # that one could otherwise meet in the store under the number of another group.
        self._last += 1
        self.epoch = self._last
        self._formed = set()
        self._broken_since = None
        self._note_change()
        # After the state is in the journal: a successor of the coordinator that did not know this
        # epoch would give its number to another group.
        self._send((*self._members, *self._waiting, *left_out), self._notice(NOW))

    def _prepare(self) -> None:
        """Prepare a group with the newcomers that wait, if the present one exists."""
        complete = self._formed >= self._members.keys()
        rows = Counter(rank // self._row for rank in self._waiting.values())
        ready = {
            name: rank
            for name, rank in self._waiting.items()
            if rows[rank // self._row] == self._row
        }
        # Not before all members have reported the present group: the first member chooses one of
        # its steps, and there are none before it is formed.
        if self.over or self._next is not None or not (ready and complete):
            return
        self._last += 1
        ranks = {**self._members, **ready}
        self._next = _NextGroup(self._last, ranks, frozenset(ready))
        self._note_change()
        self._send(self._members, _regroup(self._next, PREPARE))

    def _confirm(self, name: str, pending: _NextGroup) -> None:
        before = _all_know(pending)
        pending.confirmed.add(name)
        self._note_change()
        if _all_know(pending) and not before:
            # Only the first member chooses the step, and only when every member looks for it in the
            # store: one that does not know of the group would run past the step and wait in a
            # collective of the old group.
            self._send((self._first(),), _regroup(pending, SWITCH))
            self._send(pending.newcomers, _regroup(pending, NOW))

    def _first(self) -> str:
        """The member that chooses a step."""
        return min(self._members, key=lambda name: self._members[name])

    def _notice(self, stage: int) -> Regroup:
        return Regroup(self.epoch, tuple(sorted(self._members.values())), stage)

    def _end(self) -> Regroup:
        return Regroup(self._last, (), self._stage)

    def _notice_for(self, name: str) -> Regroup | None:
        """What a worker must know at present; None if there is nothing."""
        if self.over:
            return self._end()
        pending = self._next
        if pending is None:
            # A worker whose row was left out must know it.
            return self._notice(NOW) if name in self._members or self._row > 1 else None
        if name in pending.newcomers:
            return _regroup(pending, NOW) if _all_know(pending) else None
        if name not in self._members:
            return None
        chooses = _all_know(pending) and name == self._first()
        return _regroup(pending, SWITCH if chooses else PREPARE)


def _all_know(pending: _NextGroup) -> bool:
    """Whether all present members have heard of the next group."""
    return pending.confirmed >= pending.ranks.keys() - pending.newcomers


def _regroup(pending: _NextGroup, stage: int) -> Regroup:
    return Regroup(pending.epoch, tuple(sorted(pending.ranks.values())), stage)
