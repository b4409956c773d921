"""Membership of a run, and detection of silent or stuck members: pure functions.

Every change of the members increments the epoch. A group or message of an earlier epoch belongs to
a former set of members, and is fenced off by its number.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping


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
    """When its step last changed."""
    step: int
    phase: str
    """What it was doing: "exchange" if it waited for other workers."""
    line: str
    """Where its main thread was: file, line and function."""


@dataclass(frozen=True)
class Suspect:
    """A member for which other workers wait."""

    member: Member
    reason: Literal["silent", "stuck"]
    seconds: float
    line: str
    phase: str = ""

    def __str__(self) -> str:
        if self.reason == "silent":
            starts = (
                " while it starts: an import or a call into an extension may hold the GIL, or its "
                "process is stopped"
            )
            return (
                f"{self.member} (pid {self.member.pid}) has sent no heartbeat for "
                f"{self.seconds:.0f} s{starts if self.phase == 'start' else ''}; it was at "
                f"{self.line}"
            )
        return (
            f"{self.member} (pid {self.member.pid}) has kept the others waiting for "
            f"{self.seconds:.0f} s; it is at {self.line}"
        )


def suspects(
    now: float, signs: Mapping[str, Sign], *, silence: float, stall: float
) -> list[Suspect]:
    """The members that delay the run.

    A member is silent if it sent no heartbeat for `silence` seconds: its process is stopped or its
    host is lost. It is stuck if another member has waited in a collective for `stall` seconds and
    it is not itself waiting there, but a step behind or busy with something else. If all members
    wait, the cause is the network, and none is returned.
    """
    silent = [
        Suspect(sign.member, "silent", now - sign.heard, sign.line, sign.phase)
        for sign in signs.values()
        if now - sign.heard > silence
    ]
    if silent:
        return silent
    waiting = [sign for sign in signs.values() if sign.phase == "exchange"]
    waited = max((now - sign.moved for sign in waiting), default=0.0)
    if waited <= stall:
        return []
    return [
        Suspect(sign.member, "stuck", waited, sign.line)
        for sign in signs.values()
        if sign.phase != "exchange"
    ]
