"""Control messages about the process group of a lockstep run whose workers may be replaced."""

from __future__ import annotations

from typing import Final

import msgspec

from manyhands.wire.message import Message

PREPARE: Final = 0
"""Stage of a group: newcomers are ready; its members look at every step whether it begins."""
SWITCH: Final = 1
"""As `PREPARE`; and this member decides at which step the group begins."""
NOW: Final = 2
"""The group replaces the present one at once."""
OVER: Final = 3
"""The run is over: a worker that waits for a group ends."""
BREAK: Final = 4
"""As `OVER`; and workers in a collective are released, because a member of the group was lost."""
FAILED: Final = 5
"""A worker has failed with an error, which ends the run: all others end as well."""


class Regroup(Message, frozen=True):
    """From the coordinator: the group of an epoch of members, and what to do about it."""

    epoch: int
    ranks: tuple[int, ...]
    """The ranks of its members, in ascending order."""
    stage: int
    """One of the stages above; a later one of the same epoch replaces an earlier one."""


class GroupReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """In the heartbeat of a worker: which group it has, and what it knows of others."""

    life: int
    """Incarnation number of the worker."""
    epoch: int = 0
    """The latest epoch that it has heard of."""
    stage: int = 0
    """The latest stage of that epoch that it has heard of."""
    formed: int = 0
    """The epoch of the group that it is in."""
    broken: int = 0
    """The epoch of the last group whose collectives failed."""
    waits: bool = False
    """Whether it is in no group, and ready for one."""
    dealt: int = 0
    """Samples of the steps that all workers together have completed."""
    repeated: int = 0
    """Samples of steps that were repeated after the loss of a worker."""
    lost: int = 0
    """Samples of steps that were not taken, because the gradient was not finite."""
