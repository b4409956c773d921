"""Membership of a run, and detection of silent or stuck members: pure functions.

Every change of the members increments the epoch. A group or message of an earlier epoch belongs to
a former set of members, and is fenced off by its number.

A heartbeat shows that a process lives; only its step, its phase and its marks show that it gets on.
The line of code does not: an endless loop changes it all the time, and a long call into a library
never does (`docs/decisions/0088-patience.md`). A phase is one of three kinds:

    waits    join, exchange, receive, lease, serve   for others: never what delays a run
    is long  start, finish, store                    may take minutes without a mark
    works    compute, data, evaluate, apply          own work, user code above all
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

WAITS: Final = frozenset({"join", "exchange", "receive", "lease", "serve"})
"""Phases in which a process waits for another one."""
LONG: Final = frozenset({"start", "finish", "store"})
"""Phases of which one part may take minutes."""
_DOES = {
    "start": "starting",
    "join": "waiting for all workers to start",
    "compute": "in a step",
    "data": "loading data",
    "evaluate": "evaluating",
    "store": "storing a checkpoint",
    "finish": "storing the model",
    "exchange": "waiting for other workers",
    "receive": "waiting for an answer",
    "lease": "waiting for samples",
    "serve": "waiting for workers",
    "apply": "applying an update",
}
"""What a process does in each phase, in words."""


@dataclass(frozen=True, order=True)
class Member:
    """A process of the run."""

    role: str
    rank: int
    host: str
    pid: int

    @property
    def name(self) -> str:
        """Its name in files and traces."""
        return f"{self.role}-{self.rank}"

    def __str__(self) -> str:
        return f"{self.role} {self.rank} on {self.host}"


@dataclass(frozen=True)
class Membership:
    """The members of a run, with the epoch of this set."""

    epoch: int = 0
    members: Mapping[str, Member] = field(default_factory=dict)

    def joined(self, *newcomers: Member) -> Membership:
        """The membership with new members, one epoch later; a known name is replaced."""
        if not newcomers:
            return self
        members = {**self.members, **{member.name: member for member in newcomers}}
        return replace(self, epoch=self.epoch + 1, members=members)

    def left(self, *names: str) -> Membership:
        """The membership without these members, one epoch later; unchanged if there are none."""
        if not set(names) & self.members.keys():
            return self
        members = dict(self.members)
        for name in names:
            members.pop(name, None)
        return replace(self, epoch=self.epoch + 1, members=members)


@dataclass(frozen=True)
class Sign:
    """The last heartbeat of a member, on the coordinator's clock."""

    member: Member
    heard: float
    """When its last heartbeat arrived."""
    moved: float
    """When it last got on: its step, phase or marks changed."""
    step: int
    phase: str
    """What it was doing; see above."""
    line: str
    """Where its main thread was: file, line and function."""
    marks: int = 0
    """A number that changes whenever it gets on."""
    steps: int = 0
    """Heartbeats that showed another step than the one before."""

    def followed(
        self, now: float, *, step: int, phase: str, marks: int, line: str, gap: float = 1.0
    ) -> Sign:
        """The sign after another heartbeat.

        Args:
            now: when it arrived.
            step: its step.
            phase: its phase.
            marks: its marks.
            line: where its main thread was.
            gap: seconds between heartbeats; a longer gap was a stop, of which it is back.
        """
        got_on = (step, phase, marks) != (self.step, self.phase, self.marks)
        # While it was stopped it had no time to get on.
        stopped = now - self.heard - gap if now - self.heard > 3 * gap else 0.0
        return replace(
            self,
            heard=now,
            moved=now if got_on else self.moved + stopped,
            step=step,
            phase=phase,
            marks=marks,
            line=line,
            steps=self.steps + (step != self.step),
        )

    @property
    def does(self) -> str:
        """What it was doing, in words."""
        return _DOES.get(self.phase, self.phase)

    @property
    def is_new(self) -> bool:
        """Whether it is at its first step still, in which torch may compile the model.

        The first step that a heartbeat shows may be the one at which it has joined.
        """
        return self.member.role == "worker" and self.steps < 2


@dataclass(frozen=True)
class Patience:
    """How long a run waits for a process before it is ended.

    Example:
        >>> Patience.of(5.0, recovers=True)
        Patience(silence=5.0, progress=5.0, start=600.0, last=5.0, together=5.0)
    """

    silence: float = 30.0
    """Seconds without a heartbeat: it is stopped, holds the GIL, or its host is cut off."""
    progress: float = 1800.0
    """Seconds with heartbeats and without progress, while it does not wait for others."""
    start: float = 600.0
    """The same while it starts, takes its first step or stores something, if that is longer."""
    last: float = 600.0
    """The same if it is the only worker that is left, if that is longer."""
    together: float = 120.0
    """The same while all workers of one host wait for each other, if that is shorter: no network
    delays them, so they wait for different things, for ever."""

    @classmethod
    def of(cls, given: float | None, *, recovers: bool) -> Patience:
        """What the user gave, or the default.

        Args:
            given: seconds; None for the default.
            recovers: whether the run goes on without the process, or goes back to a checkpoint.
        """
        if given is not None:
            return cls(given, given, last=given, together=given)
        return cls() if recovers else cls(silence=cls.start)

    def silent(self, *, starts: bool) -> float:
        """Seconds without a heartbeat after which a member is ended."""
        return max(self.silence, self.start) if starts else self.silence

    def still(self, sign: Sign) -> float:
        """Seconds without progress after which this member is ended."""
        is_long = sign.is_new or sign.phase in LONG
        return max(self.progress, self.start) if is_long else self.progress

    def waiting(self, sign: Sign, hosts: int) -> float:
        """Seconds for which all workers may wait for each other, this one at the least step.

        Args:
            sign: its last heartbeat.
            hosts: on how many hosts they are.
        """
        one_host = hosts == 1 and not sign.is_new
        return min(self.still(sign), self.together) if one_host else self.still(sign)


@dataclass(frozen=True)
class Suspect:
    """A member that delays the run."""

    member: Member
    reason: Literal["silent", "stuck", "still", "all"]
    seconds: float
    line: str
    phase: str = ""
    does: str = ""

    @property
    def why(self) -> str:
        """Why it is suspected, in words."""
        doing = f", {self.does}" if self.does else ""
        if self.reason == "silent":
            return f"it sent no heartbeat for {self.seconds:.0f} s; it was at {self.line}{doing}"
        if self.reason == "all":
            return (
                f"all workers have waited for each other for {self.seconds:.0f} s; if the data "
                "decides which modules a worker computes, or how often, only "
                "allreduce(find_unused=true) and strategies with servers can train that"
            )
        return f"it made no progress for {self.seconds:.0f} s; it was at {self.line}{doing}"

    def __str__(self) -> str:
        who, where = f"{self.member} (pid {self.member.pid})", self.line
        if self.reason == "silent":
            starts = (
                " while it starts: an import or a call into an extension may hold the GIL, or its "
                "process is stopped"
            )
            return (
                f"{who} has sent no heartbeat for {self.seconds:.0f} s"
                f"{starts if self.phase == 'start' else ''}; it was at {where}"
            )
        if self.reason == "still":
            return (
                f"{who} has made no progress for {self.seconds:.0f} s; it is at {where}"
                f"{f', {self.does}' if self.does else ''}"
            )
        if self.reason == "all":
            return (
                f"all workers have waited for each other for {self.seconds:.0f} s; {who} is at "
                f"{where}"
            )
        return f"{who} has kept the others waiting for {self.seconds:.0f} s; it is at {where}"


def suspects(
    now: float,
    signs: Mapping[str, Sign],
    *,
    silence: float,
    stall: float,
    still: float = float("inf"),
) -> list[Suspect]:
    """The members that delay the run.

    A member is silent if it sent no heartbeat for `silence` seconds: its process is stopped or its
    host is lost. It is stuck if another member has waited in a collective for `stall` seconds and
    it is not itself waiting there, but a step behind or busy with something else. It is still if
    it has made no progress for `still` seconds and does not wait for another process, whether or
    not another one waits for it. If all members wait for so long, the one with the fewest steps is
    named, and that all wait: the cause is the network, or they wait for different things.
    """
    silent = [
        _suspect(sign, "silent", now - sign.heard)
        for sign in signs.values()
        if now - sign.heard > silence
    ]
    # A silent process explains why the others wait; those must not be named, or ended, for it.
    if silent:
        return silent
    waiting = [sign for sign in signs.values() if sign.phase == "exchange"]
    waited = max((now - sign.moved for sign in waiting), default=0.0)
    # If all wait, none of them keeps the others waiting: `_still` judges that case.
    if waited > stall and len(waiting) < len(signs):
        return [
            _suspect(sign, "stuck", waited) for sign in signs.values() if sign.phase != "exchange"
        ]
    return _still(now, signs, lambda _: still, lambda _, __: still)


def overdue(
    now: float, signs: Mapping[str, Sign], patience: Patience, starting: Container[str] = ()
) -> list[Suspect]:
    """The members that are to be ended, because they have delayed the run for too long.

    Args:
        now: the time.
        signs: the last heartbeats of members.
        patience: how long the run waits.
        starting: members that have not begun to train.
    """
    silent = [
        _suspect(sign, "silent", now - sign.heard)
        for name, sign in signs.items()
        if now - sign.heard > patience.silent(starts=name in starting)
    ]
    # One that others wait for may be about to be ended; until it is, the others count as waiting.
    return silent or _still(now, signs, patience.still, patience.waiting)


def _still(
    now: float,
    signs: Mapping[str, Sign],
    still: Callable[[Sign], float],
    waiting: Callable[[Sign, int], float],
) -> list[Suspect]:
    """The members that have made no progress for longer than they may, and wait for no other."""
    found = [
        _suspect(sign, "still", now - sign.moved)
        for sign in signs.values()
        if sign.phase not in WAITS and now - sign.moved > still(sign)
    ]
    # A worker that does not wait for others may still arrive, or be found itself when its patience
    # is over; only when all wait in a collective will none of them go on.
    if found or not signs or any(sign.phase != "exchange" for sign in signs.values()):
        return found
    least = min(signs.values(), key=lambda sign: (sign.step, sign.member.rank))
    # Since the last of them has begun to wait: before that they waited for it.
    latest = max(sign.moved for sign in signs.values())
    hosts = {sign.member.host for sign in signs.values()}
    may_wait = waiting(least, len(hosts))
    return [_suspect(least, "all", now - latest)] if now - latest > may_wait else []


def _suspect(
    sign: Sign, reason: Literal["silent", "stuck", "still", "all"], seconds: float
) -> Suspect:
    return Suspect(sign.member, reason, seconds, sign.line, sign.phase, sign.does)
