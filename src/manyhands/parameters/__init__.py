"""A model's parameters: cut into fragments, held by servers, copied by workers."""

from manyhands.parameters.arithmetic import difference, lerp, trade
from manyhands.parameters.committee import Committee
from manyhands.parameters.copy import Copy
from manyhands.parameters.counted import counting_among
from manyhands.parameters.holder import Holder
from manyhands.parameters.layout import Fragment, Layout, Shard
from manyhands.parameters.local import Local
from manyhands.parameters.writes import Writes

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
