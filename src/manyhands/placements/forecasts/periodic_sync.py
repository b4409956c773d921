"""What may stand between copies of a model that train apart, and what their meetings cost."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from manyhands.costs import Collective
from manyhands.protocols import DiLoCo, Meeting

if TYPE_CHECKING:
    from manyhands.costs import Forecast
    from manyhands.notation import Value

_LOCKSTEP: Final = "is what copies do without it, by allreduce in every step: leave out outer"
_FREE: Final = (
    "has servers that take updates as they come, and copies that lie on several workers meet in "
    "collectives, where all wait: take averaging(every=…) or diloco(every=…), which wait rarely, "
    "or {0} alone"
)
_NEIGHBOURS: Final = (
    "mixes in pairs, and all workers of a copy would have to choose the same neighbour: take "
    "averaging(every=…), which mixes all at once, or {0} alone"
)
_WHY_NOT: Final = {
    "allreduce": _LOCKSTEP,
    "synchronous": _LOCKSTEP,
    "central_storage": _LOCKSTEP,
    "softsync": _FREE,
    "ssp": _FREE,
    "asynchronous": _FREE,
    "hogwild": _FREE,
    "easgd": "ties copies to a centre that servers hold: take diloco(every=…), or {0} alone",
    "gossip": _NEIGHBOURS,
    "push_sum": _NEIGHBOURS,
    "ensemble": "has copies that never meet, which are runs of their own: take {0} alone",
    "hierarchical": "has islands of its own: copies are islands, so take its outer={1}",
}


def check_between(between: Value) -> Meeting:
    """What copies can do when they meet.

    Raises:
        ValueError: they cannot; the message says why, and what to take.
    """
    if not isinstance(between, Meeting):
        why = _WHY_NOT.get(between.name, "divides a model, which the axes inside a copy do")
        raise ValueError(  # noqa: TRY004 - what is wrong is the value
            f"outer={between} makes no sense: it "
            f"{why.format(between, getattr(between, 'outer', None))}. There may be averaging, "
            "local_sgd or diloco"
        )
    if between.servers != 1:
        raise ValueError(
            f"outer={between}: copies meet in collectives, without servers; leave out servers"
        )
    return between


def with_meetings(
    copy: Forecast, meeting: Meeting, copies: int, size: int, trained: int
) -> Forecast:
    """The forecast of copies, given one copy's.

    Args:
        copy: what its workers do among themselves.
        meeting: what the copies do.
        copies: how many.
        size: workers of each.
        trained: bytes of parameters that the first worker of a copy has and trains.
    """
    kept = 2 * trained if isinstance(meeting, DiLoCo) else 0
    return replace(
        copy,
        start=tuple(replace(one, workers=one.workers or size) for one in copy.start),
        step=tuple(replace(one, workers=one.workers or size) for one in copy.step),
        memory=copy.memory + kept,
        meeting=(Collective("allreduce", trained, copies),) if copies > 1 else (),
        every=meeting.every,
        by_worker=copy.by_worker * copies,
    )
