"""A model's parameters: cut into fragments, held by servers, copied by workers."""

from manyhands.parameters.copy import Copy
from manyhands.parameters.holder import Holder
from manyhands.parameters.layout import Fragment, Layout, Shard

__all__ = ["Copy", "Fragment", "Holder", "Layout", "Shard"]
