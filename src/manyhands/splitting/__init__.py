"""A model cut into stages: pieces by tracing, costs by measuring, the cut by a formula."""

from manyhands.splitting.chain import Chain, Unsplittable, chain, check_stages
from manyhands.splitting.measure import measure
from manyhands.splitting.partition import Measured, describe, partition

__all__ = [
    "Chain",
    "Measured",
    "Unsplittable",
    "chain",
    "check_stages",
    "describe",
    "measure",
    "partition",
]
