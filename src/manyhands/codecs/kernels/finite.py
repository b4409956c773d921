"""A check for NaN and infinity that reads every number once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

NotFinite: TypeAlias = Literal["", "NaN", "infinity"]
"""What a vector has that is no finite number; empty if all of its numbers are finite."""


def not_finite(tensor: torch.Tensor) -> NotFinite:
    """What a tensor has that is no finite number; empty if there is nothing of the kind.

    A NaN or an infinity makes the sum one as well, so a finite sum settles it. The sum of finite
    numbers may overflow, and only then each of them is looked at.

    >>> import torch
    >>> not_finite(torch.tensor([1.0, float("-inf"), float("inf")]))
    'infinity'
    >>> not_finite(torch.full((4,), 3e38))
    ''
    """
    import torch  # noqa: PLC0415 - a description of a codec loads without torch

    if tensor.device.type == "meta" or not (tensor.is_floating_point() or tensor.is_complex()):
        return ""
    tensor = tensor.detach()
    if tensor.element_size() == 1:
        tensor = tensor.float()  # torch.isfinite does not support types of eight bits
    wider = torch.float32 if tensor.element_size() == 2 else None
    if bool(torch.isfinite(tensor.sum(dtype=wider))):
        return ""
    if bool(torch.isnan(tensor).any()):
        return "NaN"
    return "" if bool(torch.isfinite(tensor).all()) else "infinity"


def not_finite_among(tensors: Sequence[torch.Tensor]) -> NotFinite:
    """What any of many tensors has that is no finite number, by one operation for all of them.

    >>> import torch
    >>> not_finite_among([torch.ones(2), torch.tensor([float("nan")])])
    'NaN'
    """
    import torch  # noqa: PLC0415

    dense = [one._values() if one.is_sparse else one for one in tensors]
    dense = [one for one in dense if one.device.type != "meta" and one.numel()]
    if not dense:
        return ""
    if all(one.is_floating_point() and one.element_size() > 1 for one in dense):
        # Its squares may overflow, but torch computes other norms several times more slowly.
        with torch.no_grad():
            norms = torch._foreach_norm(dense, 2)
            if len({norm.dtype for norm in norms}) > 1:
                norms = tuple(norm.float() for norm in norms)
            total = torch.stack(norms).sum(dtype=torch.float64)
        if math.isfinite(float(total)):
            return ""
    return next((found for found in map(not_finite, dense) if found), "")
