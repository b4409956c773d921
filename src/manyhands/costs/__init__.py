"""Cost formulas of parallel training: pure functions of sizes and counts."""

from manyhands.costs.allreduce import (
    BETWEEN_WORKERS,
    AllreduceCost,
    LinkSpeed,
    butterfly,
    halving,
    hierarchical_seconds,
    hierarchical_servers,
    lower_bound,
    one_server,
    ring,
    sharded_servers,
    tree,
)
from manyhands.costs.coding_speed import CodingSpeed, CodingSpeeds
from manyhands.costs.collectives import Collective, allreduce_bytes, sent_per_worker
from manyhands.costs.compression import (
    CodingCost,
    allreduce_pays_below,
    allreduce_step_seconds,
    pays_below,
    push_step_seconds,
)
from manyhands.costs.compute_conditions import PLAIN, ComputeConditions, PieceTime
from manyhands.costs.crossover import FastestRange, crossover, fastest, fastest_ranges
from manyhands.costs.forecast import Forecast, LayerSize, TensorSize
from manyhands.costs.step_payload import StepPayload
from manyhands.costs.work_depth import LayerCost, NetworkCost, WorkDepth

__all__ = [
    "BETWEEN_WORKERS",
    "PLAIN",
    "AllreduceCost",
    "CodingCost",
    "CodingSpeed",
    "CodingSpeeds",
    "Collective",
    "ComputeConditions",
    "FastestRange",
    "Forecast",
    "LayerCost",
    "LayerSize",
    "LinkSpeed",
    "NetworkCost",
    "PieceTime",
    "StepPayload",
    "TensorSize",
    "WorkDepth",
    "allreduce_bytes",
    "allreduce_pays_below",
    "allreduce_step_seconds",
    "butterfly",
    "crossover",
    "fastest",
    "fastest_ranges",
    "halving",
    "hierarchical_seconds",
    "hierarchical_servers",
    "lower_bound",
    "one_server",
    "pays_below",
    "push_step_seconds",
    "ring",
    "sent_per_worker",
    "sharded_servers",
    "tree",
]
