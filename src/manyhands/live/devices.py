"""Devices of workers."""

import torch


def take(name: str) -> torch.device:
    """A worker's device, which becomes the current device of the process.

    FSDP2 and NCCL allocate on the current device, which is the first GPU by default.
    """
    device = torch.device(name)
    if device.type == "cuda":  # not exercised on machines without a GPU
        torch.cuda.set_device(device)
    return device


def devices(workers: int) -> tuple[str, ...]:
    """A device for each worker of this host: the GPUs in turn, else the CPU."""
    if torch.cuda.is_available():  # not exercised on machines without a GPU
        count = torch.cuda.device_count()
        return tuple(f"cuda:{rank % count}" for rank in range(workers))
    return ("cpu",) * workers
