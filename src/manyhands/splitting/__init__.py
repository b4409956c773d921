"""A model split into stages: pieces by tracing, costs by measuring, the rest by a formula."""

from manyhands.splitting.chain import Chain, Unsplittable, chain, check_stages
from manyhands.splitting.filling import fill
from manyhands.splitting.guess import guess
from manyhands.splitting.look import look
from manyhands.splitting.measure import measure
from manyhands.splitting.partition import Measured, describe, partition
from manyhands.splitting.section import Section

__all__ = [
    "Chain",
    "Measured",
    "Section",
    "Unsplittable",
    "chain",
    "check_stages",
    "describe",
    "fill",
    "guess",
    "look",
    "measure",
    "partition",
]
