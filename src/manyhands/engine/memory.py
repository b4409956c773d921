"""Recognition of torch's out-of-memory errors."""

import torch


def out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory is exhausted; on the CPU it has no type of its own."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        "can't allocate memory" in str(error)
    )
