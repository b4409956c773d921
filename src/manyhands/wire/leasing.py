"""Control messages about leases and evaluations, for workers under a protocol."""

from __future__ import annotations

import sys

from manyhands.wire.message import Message

MOST_LEASES = 16
"""That a worker is granted at once."""


class Ask(Message, frozen=True):
    """A worker requests samples."""

    leases: int = 1
    """At most so many leases are the answer: as many as there are at present, or else one later."""


class Commit(Message, frozen=True):
    """The update made from a lease is part of the shared state."""

    number: int
    seconds: float = 0.0
    """How long the worker computed on it; 0 if that is not known."""


class Granted(Message, frozen=True):
    """A lease: positions `start` to `stop` in the order of `epoch`."""

    number: int
    epoch: int
    start: int
    stop: int
    total: int
    """Samples in its global batch."""
    dealt: int = 0
    """Samples of the run before that global batch."""
    delayed: bool = False
    """Whether the worker had asked for it when there were no samples."""


class Nothing(Message, frozen=True):
    """There are no samples at present, because others hold them; the answer will follow."""

    pauses: bool = False
    """Whether all workers pause after the same global batch, and go on with the same one."""


class Forgo(Message, frozen=True):
    """The update of a lease is discarded: its samples are lost."""

    number: int


class StreamEnded(Message, frozen=True):
    """The data is a stream, and a worker has read its end: it has so many samples."""

    samples: int


class Evaluate(Message, frozen=True):
    """All samples before this evaluation are committed: evaluate part `index` of `parts`."""

    round: int
    index: int
    parts: int
    samples: int
    """Samples committed so far."""
    ranks: tuple[int, ...] = ()
    """If not empty: store a checkpoint in place of an evaluation, as these workers do."""


class Tally(Message, frozen=True):
    """A worker's statistics, summed over the samples of its part."""

    round: int
    values: tuple[float, ...]


class Sum(Message, frozen=True):
    """The statistics of all parts."""

    round: int
    values: tuple[float, ...]


class Enough(Message, frozen=True):
    """The target is reached: no more samples are needed."""


class Over(Message, frozen=True):
    """All samples are committed, or no more are needed.

    One worker stores the model; the others receive this message when that is done.
    """

    stores: bool


class Saved(Message, frozen=True):
    """The file of the model is complete."""


class Lost(Message, frozen=True):
    """From the agent: a worker's process has ended."""

    name: str
    words: str
    life: int = 0
    """Its incarnation number; 0 if that is not known."""


class Eject(Message, frozen=True):
    """To the agent of its host: end a worker or server that delays the run, with the reason."""

    name: str
    words: str
    pid: int = 0
    """Which process is meant; 0 for the present one. A successor has done nothing wrong."""


class Fence(Message, frozen=True):
    """To servers: a worker is lost; refuse calls of its incarnations before `least`.

    Fences are numbered, and each is sent until a heartbeat confirms it.
    """

    name: str
    least: int = sys.maxsize
    number: int = 0


class Rejoined(Message, frozen=True):
    """To workers with peer servers: a worker that was lost has returned, and has a replica.

    It is numbered as fences are, in one sequence with them.
    """

    name: str
    life: int
    """Its incarnation number; earlier ones are over."""
    epoch: int
    """The epoch of the membership. Its server ignores calls from before it was restarted."""
    host: str = ""
    address: str = ""
    """Address at which other hosts call it."""
    number: int = 0


class Dismiss(Message, frozen=True):
    """To servers: the run is over."""


Leasing = (
    Ask
    | Commit
    | Forgo
    | StreamEnded
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
    | Rejoined
    | Dismiss
)


class Word(Message, frozen=True):
    """Messages between a worker and the lease service, numbered so that each arrives once."""

    life: int
    """Incarnation number of the worker."""
    number: int
    """Number of the first message; the others follow it."""
    heard: int
    """Number of messages received from the other side (an acknowledgement)."""
    messages: tuple[Leasing, ...] = ()
    """The messages; empty for an acknowledgement alone."""
