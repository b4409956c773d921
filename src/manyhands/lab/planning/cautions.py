"""What a ranking does not know: how strategies learn, and that some runs end by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from manyhands.lab.planning.failures import long_words
from manyhands.strategies import strategy as read_strategy
from manyhands.verbs.assumed_values import codecs_within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manyhands.lab.planning.planned import PlannedStrategy

_SELDOM: Final = 0.1
"""The part of the time until a run ends by itself that it may take without a caution."""
_REMEDY: Final = "add --target, or compare them with manyhands compare --virtual"


def learning_cautions(best: Sequence[PlannedStrategy]) -> list[str]:
    """Of the best strategies by speed, those whose codecs change what is learnt."""
    lossy: dict[str, None] = {}
    for one in best:
        codecs = codecs_within(read_strategy(one.strategy))
        lossy |= dict.fromkeys(str(codec) for codec in codecs if not codec.lossless)
    if not lossy:
        return []
    verb = "changes" if len(lossy) == 1 else "change"
    words = (
        f"{', '.join(lossy)} {verb} what is learnt, and this ranking is by speed alone: more "
        f"samples may be needed for the same accuracy, or it may not be reached; {_REMEDY}"
    )
    return [words]


def ending_cautions(best: Sequence[PlannedStrategy], samples: int | None) -> list[str]:
    """Of the best strategies, those that end when a second worker is lost before a checkpoint.

    Args:
        best: the strategies.
        samples: those of the whole training; None if that is not known.
    """
    said = []
    for one in best:
        if one.goodput is None or one.goodput.ends_after is None:
            continue
        lasts = one.counting_seconds
        if lasts is None and samples is not None:
            lasts = samples / one.counting_rate
        if lasts is not None and lasts < _SELDOM * one.goodput.ends_after:
            continue
        said.append(
            f"a second loss before the next checkpoint ends a run of {one.strategy}, after some "
            f"{long_words(one.goodput.ends_after)} on average: give a shorter --checkpoint, as in "
            "'1min, 10s in memory'"
        )
    return said[:1]
