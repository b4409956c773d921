"""What a computation would give, without computing it: shapes and types alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

if TYPE_CHECKING:
    from collections.abc import Callable


def imagine(compute: Callable[..., Any], *inputs: torch.Tensor) -> Any:
    """The result of `compute(*inputs)` with tensors that have a shape and a type and no values.

    It allocates nothing and takes the time of the bookkeeping, whatever the size of the model.
    Parameters may be real or on the meta device. Random sources and buffers are left as they are.
    """
    with torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
        return compute(*(mode.from_tensor(tensor.detach()) for tensor in inputs))
