"""Splitting of a model into stages: tracing into pieces, cost measurement, and partition."""

from manyhands.splitting.chain import Chain, Unsplittable, chain, check_stages
from manyhands.splitting.cost_estimate import estimate
from manyhands.splitting.cost_measurement import measure
from manyhands.splitting.meta_values import fill
from manyhands.splitting.partition import PieceCost, describe, partition
from manyhands.splitting.piece_times import with_times
from manyhands.splitting.section import Section
from manyhands.splitting.untouched_run import inspect_call

__all__ = [
    "Chain",
    "PieceCost",
    "Section",
    "Unsplittable",
    "chain",
    "check_stages",
    "describe",
    "estimate",
    "fill",
    "inspect_call",
    "measure",
    "partition",
    "with_times",
]
