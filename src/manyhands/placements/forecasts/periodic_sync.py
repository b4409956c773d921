"""Outer strategies of hybrid(): checks, and the forecast of periodic synchronisation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from manyhands.costs import Collective
from manyhands.protocols import DiLoCo, LocalSteps
from manyhands.protocols.parts.overrides import check_overrides

if TYPE_CHECKING:
    from manyhands.costs import Forecast
    from manyhands.notation import Value

_LOCKSTEP: Final = "is the default, by allreduce in every step: leave out outer"
_FREE: Final = (
    "needs servers that apply updates as they arrive, and replicas on several workers synchronise "
    "by collectives: use averaging(every=…) or diloco(every=…), which rarely wait, or {0} alone"
)
_NEIGHBOURS: Final = (
    "averages in pairs, and all workers of a replica would have to choose the same neighbour: use "
    "averaging(every=…), which averages all replicas, or {0} alone"
)
_ADDED: Final = (
    "adds the updates of all workers in every step, which costs more than allreduce between "
    "replicas: use averaging(every=…) or diloco(every=…), or {0} alone"
)
_WHY_NOT: Final = {
    "allreduce": _LOCKSTEP,
    "synchronous": _LOCKSTEP,
    "central_storage": _LOCKSTEP,
    "softsync": _FREE,
    "ssp": _FREE,
    "asynchronous": _FREE,
    "hogwild": _FREE,
    "easgd": "needs servers that hold the centre: use diloco(every=…), or {0} alone",
    "gossip": _NEIGHBOURS,
    "push_sum": _NEIGHBOURS,
    "broadcast": _ADDED,
    "ensemble": "has replicas that never synchronise, which are separate runs: use {0} alone",
    "hierarchical": "has its own islands, and replicas are islands already: use its outer={1}",
}


_CARRIED_OUT: Final = ("conclude", "interval", "check", "step_payload")
"""What replicas call of an outer strategy; `step_payload` only describes it."""

_HEAD: Final = 16
"""Bytes in front of an encoded change."""


def check_outer(outer: Value) -> LocalSteps:
    """The outer strategy, if replicas of a hybrid can synchronise by it.

    Raises:
        ValueError: they cannot; the message says why, and what to use.
    """
    if not isinstance(outer, LocalSteps):
        why = _WHY_NOT.get(outer.name, "divides a model, which the axes of hybrid() do")
        raise ValueError(  # noqa: TRY004 - what is wrong is the value
            f"outer must be averaging, local_sgd or diloco, got {outer}, which "
            f"{why.format(outer, getattr(outer, 'outer', None))}"
        )
    if getattr(outer, "streams", False):
        raise ValueError(
            f"outer={outer}: replicas synchronise all parameters at once by collectives: leave out "
            "fragments, overlap and wait_for"
        )
    if outer.servers != 1:
        raise ValueError(
            f"outer={outer}: replicas synchronise by collectives, without servers: leave out "
            "servers"
        )
    if outer.answer_codec != "same":
        given = "none" if outer.answer_codec is None else outer.answer_codec
        raise ValueError(
            f"outer={outer}: replicas send their changes to each other, and no server answers: "
            f"leave out answer_codec={given}"
        )
    if outer.shares != "even":
        raise ValueError(
            f"outer={outer}: global batches are divided evenly among replicas: leave out "
            f"shares={outer.shares}, or use {type(outer).name} without hybrid"
        )
    check_overrides(outer, _CARRIED_OUT, "hybrid()", "replicas synchronise by collectives")
    return outer


def with_synchronisations(
    copy: Forecast, outer: LocalSteps, copies: int, size: int, trained: int
) -> Forecast:
    """The forecast of replicas that synchronise periodically, given that of one replica.

    Args:
        copy: the forecast of one replica.
        outer: the strategy between replicas.
        copies: number of replicas.
        size: workers per replica.
        trained: bytes of trained parameters on the first worker of a replica.
    """
    kept = 2 * trained if isinstance(outer, DiLoCo) else trained
    exchange = Collective("allreduce", trained, copies)
    if outer.codec is not None:
        # Float32: a length, a share and a payload of each replica. A replica keeps a residual.
        frame = _HEAD + outer.codec.wire_bytes(round(trained / 4))
        exchange = Collective("all_gather", copies * frame, copies)
        kept += trained if outer.codec.feeds_back else 0
    return replace(
        copy,
        start=tuple(replace(one, workers=one.workers or size) for one in copy.start),
        step=tuple(replace(one, workers=one.workers or size) for one in copy.step),
        memory=copy.memory + kept,
        outer=(exchange,) if copies > 1 else (),
        every=outer.every,
        by_worker=copy.by_worker * copies,
    )
