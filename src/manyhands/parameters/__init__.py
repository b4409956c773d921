"""A model's parameters: cut into fragments, held by servers, copied by workers."""

from manyhands.parameters.arithmetic import difference, lerp, trade
from manyhands.parameters.copy import Copy
from manyhands.parameters.ensemble import Committee
from manyhands.parameters.holder import Holder
from manyhands.parameters.ignored_targets import counting_among
from manyhands.parameters.layout import Fragment, Layout, Shard
from manyhands.parameters.local_optimizer import Local
from manyhands.parameters.update_counts import Writes

__all__ = [
    "Committee",
    "Copy",
    "Fragment",
    "Holder",
    "Layout",
    "Local",
    "Shard",
    "Writes",
    "counting_among",
    "difference",
    "lerp",
    "trade",
]
