"""How torch says that there is too little memory."""

import torch


def out_of_memory(error: BaseException) -> bool:
    """Whether an error is about that: on the CPU it has no type of its own."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        "can't allocate memory" in str(error)
    )
