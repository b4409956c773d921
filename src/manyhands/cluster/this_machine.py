"""This machine as a host: cores, memory and GPUs, found without loading torch."""

from __future__ import annotations

import os
import socket
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path

from manyhands.cluster.host import Host

_DRIVER = Path("/dev")
"""Where the NVIDIA driver has a file for each GPU: nvidia0, nvidia1."""


def this_host() -> Host:
    """This machine: the cores that this process may use, its memory and its GPUs.

    GPUs are those of the NVIDIA driver that `CUDA_VISIBLE_DEVICES` allows, if the installed torch
    is built for CUDA.
    """
    devices = tuple(f"cuda:{number}" for number in range(_gpus()))
    return Host(name=socket.gethostname(), cores=_usable_cores(), memory=_memory(), devices=devices)


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0))


def _gpus() -> int:
    """The GPUs that torch will find."""
    installed = find_spec("torch")
    if installed is None or installed.origin is None:
        return 0
    if not (Path(installed.origin).parent / "lib" / "libtorch_cuda.so").exists():
        return 0
    present = sum(path.name[len("nvidia") :].isdecimal() for path in _DRIVER.glob("nvidia*"))
    return _visible(present, os.environ.get("CUDA_VISIBLE_DEVICES"))


def _visible(present: int, allowed: str | None) -> int:
    """How many of the GPUs that are present CUDA shows: those before the first invalid entry.

    >>> _visible(4, None), _visible(4, "0,2"), _visible(4, ""), _visible(4, "1,-1,2")
    (4, 2, 0, 1)
    """
    if allowed is None:
        return present
    entries = [entry.strip() for entry in allowed.split(",")]
    valid = takewhile(
        lambda one: one.startswith(("GPU-", "MIG-")) or (one.isdecimal() and int(one) < present),
        entries,
    )
    return min(present, len(list(valid)))


def _memory() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/meminfo does not say how much memory there is")
