"""Tier C: PyTorch's own engine, bound and forecast; one file per placement."""

from manyhands.placements.allreduce import AllReduce
from manyhands.placements.context import Context
from manyhands.placements.fully_sharded import FullySharded
from manyhands.placements.hybrid import Hybrid
from manyhands.placements.offload import Offload
from manyhands.placements.pipeline import Pipeline
from manyhands.placements.place import Place
from manyhands.placements.placement import Placement
from manyhands.placements.single import Single
from manyhands.placements.tensor import Tensor
from manyhands.placements.zero import Zero

ALL: tuple[type[Placement], ...] = (
    AllReduce,
    Context,
    FullySharded,
    Hybrid,
    Offload,
    Pipeline,
    Place,
    Single,
    Tensor,
    Zero,
)
"""Every placement: add a new one here and the shared contract suite tests it."""

__all__ = [
    "ALL",
    "AllReduce",
    "Context",
    "FullySharded",
    "Hybrid",
    "Offload",
    "Pipeline",
    "Place",
    "Placement",
    "Single",
    "Tensor",
    "Zero",
]
