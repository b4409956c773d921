"""The one folder that touches private and alpha parts of torch."""

from manyhands.engine.groups import gloo_group, nccl_group, pretended_group, rebind
from manyhands.engine.lazy_imports import load_late_parts
from manyhands.engine.memory import out_of_memory
from manyhands.engine.stores import PrefixStore, Store, TCPStore, rendezvous

__all__ = [
    "PrefixStore",
    "Store",
    "TCPStore",
    "gloo_group",
    "load_late_parts",
    "nccl_group",
    "out_of_memory",
    "pretended_group",
    "rebind",
    "rendezvous",
]
