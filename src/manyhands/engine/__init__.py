"""Adapters to PyTorch; the only folder that uses its private and prototype APIs."""

from manyhands.engine.groups import fake_group, gloo_group, nccl_group, rebind, set_timeout
from manyhands.engine.lazy_imports import load_late_parts
from manyhands.engine.memory import out_of_memory
from manyhands.engine.stores import PrefixStore, Store, TCPStore, rendezvous

__all__ = [
    "PrefixStore",
    "Store",
    "TCPStore",
    "fake_group",
    "gloo_group",
    "load_late_parts",
    "nccl_group",
    "out_of_memory",
    "rebind",
    "rendezvous",
    "set_timeout",
]
