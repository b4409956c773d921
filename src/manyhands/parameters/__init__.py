"""A model's parameters: divided into fragments, held by servers, copied by workers."""

from manyhands.parameters.arithmetic import as_bytes, difference, lerp, not_finite_in, trade
from manyhands.parameters.copy import Copy
from manyhands.parameters.ensemble import EnsembleModel
from manyhands.parameters.holder import Holder
from manyhands.parameters.layout import Fragment, Layout, Shard
from manyhands.parameters.local_optimizer import LocalOptimizer
from manyhands.parameters.shard_vectors import ShardVectors
from manyhands.parameters.update_counts import UpdateCounts
from manyhands.parameters.weights.loss_weight import counting_among

__all__ = [
    "Copy",
    "EnsembleModel",
    "Fragment",
    "Holder",
    "Layout",
    "LocalOptimizer",
    "Shard",
    "ShardVectors",
    "UpdateCounts",
    "as_bytes",
    "counting_among",
    "difference",
    "lerp",
    "not_finite_in",
    "trade",
]
