"""Control messages about leases and evaluations, for workers that run free."""

from __future__ import annotations

import sys

from manyhands.wire.message import Message


class Ask(Message, frozen=True):
    """A worker wants samples."""


class Commit(Message, frozen=True):
    """The update made from a lease is part of the shared state."""

    number: int


class Granted(Message, frozen=True):
    """A lease: positions `start` to `stop` in the order of `epoch`."""

    number: int
    epoch: int
    start: int
    stop: int
    total: int
    """Samples of the global batch that it is a part of."""
    dealt: int = 0
    """Samples of the run before that."""


class Nothing(Message, frozen=True):
    """There are no samples at present, though others have some; there will be an answer."""


class Forgo(Message, frozen=True):
    """What was made of a lease is not wanted: its samples are lost."""

    number: int


class Evaluate(Message, frozen=True):
    """All samples of an epoch are committed: evaluate part `index` of `parts`."""

    round: int
    index: int
    parts: int
    samples: int
    """Samples committed so far."""


class Tally(Message, frozen=True):
    """A worker's statistics of its part, summed over its samples."""

    round: int
    values: tuple[float, ...]


class Sum(Message, frozen=True):
    """The statistics of all parts."""

    round: int
    values: tuple[float, ...]


class Enough(Message, frozen=True):
    """The target is reached: no more samples."""


class Over(Message, frozen=True):
    """All samples are committed, or no more are wanted.

    One worker stores the model; the others hear it when that is done.
    """

    stores: bool


class Saved(Message, frozen=True):
    """The file of the model is complete."""


class Lost(Message, frozen=True):
    """From the agent: a worker's process is gone."""

    name: str
    words: str
    life: int = 0
    """Which incarnation of it; 0 if that is not known."""


class Eject(Message, frozen=True):
    """To the agent of its host: end a worker that holds up the run, and why."""

    name: str
    words: str


class Fence(Message, frozen=True):
    """To servers: a worker is lost, and nothing of its lives before `least` is to be carried out.

    Fences are numbered, and each is sent until a heartbeat says that it was heard.
    """

    name: str
    least: int = sys.maxsize
    number: int = 0


class Dismiss(Message, frozen=True):
    """To servers: the run is over."""


Leasing = (
    Ask
    | Commit
    | Forgo
    | Granted
    | Nothing
    | Evaluate
    | Tally
    | Sum
    | Enough
    | Over
    | Saved
    | Lost
    | Eject
    | Fence
    | Dismiss
)


class Word(Message, frozen=True):
    """Messages between a worker and the desk, numbered so that each arrives once, in order."""

    life: int
    """Which of the processes that had the worker's name it is about."""
    number: int
    """That of the first message; the others follow it."""
    heard: int
    """How many of the other side's messages have come."""
    messages: tuple[Leasing, ...] = ()
    """Empty if only `heard` is news."""
