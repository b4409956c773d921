"""The two levels of a hierarchical strategy: which can be combined, and what they send."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from manyhands.costs import StepPayload
from manyhands.protocols.averaging import LocalSteps
from manyhands.protocols.compression.coding import HEAD, Compressed
from manyhands.protocols.parts.overrides import check_overrides
from manyhands.protocols.synchronous import Synchronous

if TYPE_CHECKING:
    from manyhands.notation import Value


def check_levels(islands: int, inner: Value, outer: Value) -> None:
    """Check that these strategies can be combined.

    Raises:
        ValueError: they cannot; the message names what can.
    """
    if islands < 1:
        raise ValueError(f"islands must be 1 or more, got {islands}")
    if not isinstance(inner, Synchronous):
        raise ValueError(  # noqa: TRY004 - what is wrong is the value
            f"inner must be synchronous(), got {inner}: the workers of an island share one server. "
            f"{_instead(islands, outer)}"
        )
    if not isinstance(outer, Synchronous | LocalSteps):
        raise ValueError(  # noqa: TRY004 - as above
            f"outer must be averaging(), local_sgd() or diloco(), to which an island sends its "
            f"parameters every few steps, or synchronous(), to which it sends the sum of its "
            f"gradients in every step, got {outer}: other strategies do not wait for all islands, "
            "or have no server"
        )
    for name, level in (("inner", inner), ("outer", outer)):
        if getattr(level, "streams", False):
            raise ValueError(
                f"{name}={level}: islands synchronise all parameters at once and wait for each "
                "other: leave out fragments, overlap and wait_for"
            )
        if getattr(level, "aggregate", "mean") != "mean":
            raise ValueError(
                f"{name}={level}: servers of islands pass sums on, and an outer server has no "
                "updates of single workers: leave out aggregate, or use synchronous() alone"
            )
        if getattr(level, "shares", "even") != "even":
            raise ValueError(
                f"{name}={level}: global batches are divided evenly among islands: leave out "
                "shares, or use it without islands"
            )
        if level.servers != 1:
            raise ValueError(
                f"{name}={level} has {level.servers} servers, which could get out of step when a "
                "worker is lost: use servers=1, and more islands"
            )
        _check_subclass(name, level, sums=isinstance(outer, Synchronous))


_DESCRIBED: Final = ("coding", "exchanged", "step_payload")
_IN_ROUNDS: Final = (
    *("on_message", "on_leave", "early", "conclude", "interval", "gather", "weigh"),
    *("is_late", "damping_factor", "needed", "counts_empty_rounds", "keeps_apart", "in_order"),
    *("_close", "_answer_now"),
)
"""What servers call of a level that synchronises parameters."""


def _check_subclass(name: str, level: Synchronous | LocalSteps, *, sums: bool) -> None:
    called = _DESCRIBED if sums else (*_DESCRIBED, *_IN_ROUNDS)
    because = f"as {name} it has a worker and states that serve two levels"
    check_overrides(level, called, "hierarchical()", because)


def step_payload(
    inner: Synchronous, outer: Value, islands: int, workers: int, size: int
) -> StepPayload:
    """The bytes of a step of one worker, with both levels' codecs."""
    assert isinstance(outer, Compressed)
    every = outer.every if isinstance(outer, LocalSteps) else 1
    rounds = islands / (workers * every)
    outer_sent, outer_received = (rounds * part for part in outer.exchanged(size, 1))
    sent, received = inner.exchanged(size, 1)
    head = HEAD if inner.coding("updates") else 0
    return StepPayload(
        sent=sent + outer_sent + rounds * size,
        received=received + outer_received + rounds * (size + head),
        outer_sent=outer_sent,
        outer_received=outer_received,
    )


def _instead(islands: int, outer: Value) -> str:
    if isinstance(outer, Synchronous):
        return "For a step with the mean of all gradients by collectives, use allreduce()"
    return (
        "For collectives within islands of N workers, and periodic synchronisation between them, "
        f"use hybrid(data={islands}, together=N, outer={outer})"
    )


def rounds_of(outer: object) -> tuple[int, int] | None:
    """The length of a round of the islands, as `RuntimeNeeds.rounds`."""
    return outer.round_length.numbers if isinstance(outer, LocalSteps) else None
