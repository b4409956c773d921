"""The one folder that touches private and alpha parts of torch."""

from manyhands.engine.groups import gloo_group, nccl_group, rebind
from manyhands.engine.stores import PrefixStore, Store, TCPStore, rendezvous

__all__ = [
    "PrefixStore",
    "Store",
    "TCPStore",
    "gloo_group",
    "nccl_group",
    "rebind",
    "rendezvous",
]
