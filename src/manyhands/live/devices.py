"""What workers compute on."""

import torch


def devices(workers: int) -> tuple[str, ...]:
    """A device for each worker of this host: the GPUs in turn, else its cores."""
    if torch.cuda.is_available():  # not exercised on machines without a GPU
        count = torch.cuda.device_count()
        return tuple(f"cuda:{rank % count}" for rank in range(workers))
    return ("cpu",) * workers
