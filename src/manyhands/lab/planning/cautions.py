"""What a ranking by speed does not know of how strategies learn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from manyhands.strategies import strategy as read_strategy
from manyhands.verbs.assumed_values import codecs_within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manyhands.lab.planning.ranking import PlannedStrategy

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
