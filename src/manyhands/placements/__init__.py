"""Strategies that PyTorch's own engine executes (DDP, FSDP, DTensor, pipelining), one per file.

>>> AllReduce().needs(4).collectives
True
"""

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
from manyhands.placements.virtual_form import PlacedProtocol
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
"""Every placement. The shared contract suite tests each class listed here."""

__all__ = [
    "ALL",
    "AllReduce",
    "Context",
    "FullySharded",
    "Hybrid",
    "Offload",
    "Pipeline",
    "Place",
    "PlacedProtocol",
    "Placement",
    "Single",
    "Tensor",
    "Zero",
]
