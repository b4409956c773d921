"""Manyhands: train one PyTorch model under any parallel strategy, by changing one word.

This face is lazy (PEP 562): importing it loads no torch, starts no process and opens no socket.
A name is loaded from its home on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from manyhands import data, lr_schedules, metrics, models, strategies
    from manyhands.cluster import Cluster, Host, Link
    from manyhands.failure import Refused, RunFailed
    from manyhands.job import Job
    from manyhands.lab.compare import compare
    from manyhands.live.worker.trainer import Trainer
    from manyhands.reports import Run
    from manyhands.strategies import Strategy, strategy
    from manyhands.verbs import simulate, train

__version__ = "0.1.0"

__all__ = [
    "Cluster",
    "Host",
    "Job",
    "Link",
    "Refused",
    "Run",
    "RunFailed",
    "Strategy",
    "Trainer",
    "__version__",
    "compare",
    "data",
    "lr_schedules",
    "metrics",
    "models",
    "simulate",
    "strategies",
    "strategy",
    "train",
]

_HOME = {
    "Cluster": "manyhands.cluster",
    "Host": "manyhands.cluster",
    "Job": "manyhands.job",
    "Link": "manyhands.cluster",
    "Refused": "manyhands.failure",
    "Run": "manyhands.reports",
    "RunFailed": "manyhands.failure",
    "Strategy": "manyhands.strategies",
    "Trainer": "manyhands.live.worker.trainer",
    "compare": "manyhands.lab.compare",
    "simulate": "manyhands.verbs",
    "strategy": "manyhands.strategies",
    "train": "manyhands.verbs",
}
_FOLDERS = ("data", "lr_schedules", "metrics", "models", "strategies")


def __getattr__(name: str) -> object:
    if name in _FOLDERS:
        return import_module(f"manyhands.{name}")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'manyhands' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
