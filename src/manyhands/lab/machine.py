"""The machine that a comparison ran on, as its results name it."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

from manyhands.cluster import Cluster
from manyhands.reports import Machine


def this_machine() -> Machine:
    """This one, with the cores that this process may use."""
    (host,) = Cluster.local().hosts
    return Machine(
        host=host.name, cpu=_model(), cores=host.cores, memory=host.memory, devices=_devices()
    )


def _model() -> str:
    """The processor's model; what kind it is, where the system does not say more."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    told = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(told, platform.machine())


def _devices() -> tuple[str, ...]:
    if not torch.cuda.is_available():
        return ("cpu",)
    return tuple(torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count()))
