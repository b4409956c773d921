"""Arrays of numpy on the memory of tensors, and checks of payloads.

Kernels use numpy, and torch where it is faster; single operations round the same in both. Sums are
taken by numpy, whose order of summation does not depend on the processor. Payloads are
little-endian, as are the processors that torch runs on.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from manyhands.codecs.codec import CodecError

Floats = NDArray[Any]
"""An array of float32 or float64."""
Bytes = NDArray[np.uint8]
Positions = NDArray[np.int64]


def numbers(vector: torch.Tensor) -> Floats:
    """The numbers of a vector: its own memory, or a float32 copy if they have 16 bits."""
    vector = vector.detach()
    if vector.dtype in {torch.float16, torch.bfloat16}:
        vector = vector.float()
    array: Floats = vector.numpy()
    return array


def raw(payload: torch.Tensor) -> Bytes:
    """The bytes of a payload."""
    array: Bytes = payload.detach().contiguous().numpy()
    return array


def read(data: Bytes, dtype: np.dtype[Any], count: int) -> Floats:
    """The first `count` numbers of an array of bytes, which need not be aligned."""
    return data[: count * dtype.itemsize].copy().view(dtype)


def read_tensor(payload: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The numbers of a payload, which need not be aligned."""
    if payload.storage_offset() % dtype.itemsize:
        payload = payload.clone()
    return payload.contiguous().view(dtype)


def check_length(payload: torch.Tensor | Bytes, expected: int) -> None:
    """Raise CodecError if a payload has another number of bytes."""
    found = payload.numel() if isinstance(payload, torch.Tensor) else payload.size
    if found != expected:
        raise CodecError(f"expected {expected} bytes, got {found}")
