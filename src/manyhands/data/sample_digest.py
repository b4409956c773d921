"""Digests of samples: nested values of tensors, arrays and plain objects."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import torch


def digest(value: Any) -> str:
    """A digest of a nested value."""
    found = hashlib.sha256()
    _add(found, value)
    return found.hexdigest()[:16]


def _add(found: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        found.update(str((value.dtype, tuple(value.shape))).encode())
        plain = value.detach().cpu().contiguous()
        found.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    elif hasattr(value, "items"):
        for key, item in value.items():
            found.update(str(key).encode())
            _add(found, item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _add(found, item)
    elif hasattr(value, "tobytes"):
        found.update(value.tobytes())
    else:
        # Without the addresses of objects, which differ.
        found.update(re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value)).encode())
