"""Tier C: PyTorch's own engine, bound and forecast; one file per placement."""

from manyhands.placements.allreduce import AllReduce
from manyhands.placements.fully_sharded import FullySharded
from manyhands.placements.placement import Placement
from manyhands.placements.single import Single
from manyhands.placements.zero import Zero

ALL: tuple[type[Placement], ...] = (AllReduce, FullySharded, Single, Zero)
"""Every placement: add a new one here and the shared contract suite tests it."""

__all__ = ["ALL", "AllReduce", "FullySharded", "Placement", "Single", "Zero"]
