"""Times of a model's pieces that were measured before, for pieces of another number."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manyhands.costs import PieceTime
    from manyhands.splitting.partition import PieceCost


def with_times(
    costs: Sequence[PieceCost], firsts: Sequence[str], known: Sequence[PieceTime]
) -> tuple[PieceCost, ...]:
    """Costs with times that were measured.

    A chain with more pieces divides those of one with fewer. So a piece takes as long as the known
    ones that it consists of, or a part of the known one that it belongs to, in proportion to its
    estimate. Costs of another model are returned as they are.

    Args:
        costs: by piece, its estimated cost.
        firsts: by piece, its first layer.
        known: by piece of the other chain of the model, its times.

    >>> from manyhands.costs import PieceTime
    >>> from manyhands.splitting import PieceCost
    >>> costs = [PieceCost("a", 8.0, 16.0, 0, 0), PieceCost("c", 1.0, 2.0, 0, 0)]
    >>> known = [PieceTime(name, 0.5, 1.0) for name in ("a.0", "a.1", "c")]
    >>> [one.seconds for one in with_times(costs, ("a", "c"), known)]
    [3.0, 1.5]
    """
    names = [one.first for one in known]
    if len(known) >= len(costs):
        places = _places(names, firsts)
        parts = [
            [one for at, one in zip(places, known, strict=False) if at == place]
            for place in range(len(costs))
        ]
        times = [(sum(x.forward for x in part), sum(x.backward for x in part)) for part in parts]
    else:
        places = _places(firsts, names)
        wholes = [0.0] * len(known)
        for place, cost in zip(places, costs, strict=False):
            wholes[place] += cost.seconds
        shares = [
            cost.seconds / wholes[place] if wholes[place] else 1 / places.count(place)
            for place, cost in zip(places, costs, strict=False)
        ]
        times = [
            (share * known[place].forward, share * known[place].backward)
            for place, share in zip(places, shares, strict=True)
        ]
    if not places:
        return tuple(costs)
    return tuple(
        replace(cost, forward=forward, backward=backward)
        for cost, (forward, backward) in zip(costs, times, strict=True)
    )


def _places(finer: Sequence[str], coarser: Sequence[str]) -> list[int]:
    """By piece of the finer chain, the number of the coarser one's that it belongs to.

    Nothing, if they are not of the same model.
    """
    found: list[int] = []
    at = -1
    for name in finer:
        if at + 1 < len(coarser) and f"{name}.".startswith(f"{coarser[at + 1]}."):
            at += 1
        found.append(at)
    return found if found and found[0] == 0 and at + 1 == len(coarser) else []
