"""Cost formulas of parallel training: pure functions of sizes and counts."""

from manyhands.costs.collectives import Collective, sent_per_worker
from manyhands.costs.compression import (
    CodingCost,
    allreduce_pays_below,
    allreduce_step_seconds,
    pays_below,
    push_step_seconds,
)
from manyhands.costs.forecast import Forecast, LayerSize, TensorSize
from manyhands.costs.step_payload import StepPayload

__all__ = [
    "CodingCost",
    "Collective",
    "Forecast",
    "LayerSize",
    "StepPayload",
    "TensorSize",
    "allreduce_pays_below",
    "allreduce_step_seconds",
    "pays_below",
    "push_step_seconds",
    "sent_per_worker",
]
