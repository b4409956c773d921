"""Description of the machine on which a comparison runs, for its results."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

from manyhands.cluster import Cluster
from manyhands.reports import Machine


def this_machine() -> Machine:
    """This machine, with the cores that this process may use."""
    (host,) = Cluster.local().hosts
    return Machine(
        host=host.name, cpu=_model(), cores=host.cores, memory=host.memory, devices=_devices()
    )


def _model() -> str:
    """The processor's model; its architecture if the system does not report a model."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())


def _devices() -> tuple[str, ...]:
    if not torch.cuda.is_available():
        return ("cpu",)
    return tuple(torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count()))
