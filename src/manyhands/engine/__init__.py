"""Adapters to PyTorch; the only folder that uses its private and prototype APIs."""

from manyhands.engine.groups import fake_group, gloo_group, nccl_group, rebind, set_timeout
from manyhands.engine.lazy_imports import DYNAMO, defer_dynamo
from manyhands.engine.memory import out_of_memory
from manyhands.engine.stores import PrefixStore, Store, TCPStore, rendezvous

__all__ = [
    "DYNAMO",
    "PrefixStore",
    "Store",
    "TCPStore",
    "fake_group",
    "gloo_group",
    "nccl_group",
    "out_of_memory",
    "rebind",
    "rendezvous",
    "set_timeout",
]

defer_dynamo()
