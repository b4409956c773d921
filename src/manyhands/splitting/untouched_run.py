"""Inspection runs of a model that leave its state unchanged."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from manyhands.engine.fake_tensors import run_fake

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn


@contextlib.contextmanager
def untouched(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Context that restores buffers and random states afterwards."""
    kept = [buffer.clone() for buffer in model.buffers()]
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield
    with torch.no_grad():
        for buffer, before in zip(model.buffers(), kept, strict=True):
            buffer.copy_(before)


def inspect_call(model: nn.Module, compute: Callable[..., Any], *inputs: torch.Tensor) -> Any:
    """The outputs of `compute`, for their shapes and dtypes: on fake tensors if possible.

    A layer that branches on the content of a tensor has to be computed.
    """
    with untouched(model, inputs[0].device):
        try:
            return run_fake(compute, *inputs)
        except Exception:
            # Fake tensors raise many kinds of errors.
            if inputs[0].is_meta:
                raise
            with torch.no_grad():
                return compute(*inputs)
