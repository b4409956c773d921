"""The state of an optimizer, by the names of the parameters."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from manyhands.engine.tensors import as_dtensor, gathered, is_divided, own
from manyhands.files.checkpoints import TensorPart

if TYPE_CHECKING:
    from collections.abc import Iterator

    from manyhands.files.checkpoints import Checkpoint
    from manyhands.placements.held import SteppedTensor

_PLAIN = (bool, int, float, str, type(None))


def entries(optimizer: torch.optim.Optimizer, stepped: list[SteppedTensor]) -> Iterator[TensorPart]:
    """The tensors of an optimizer's state that this worker stores.

    An entry as large as its parameter is divided as the parameter is. Any other one, as the number
    of steps, belongs to the whole parameter.
    """
    for one in stepped:
        for key, value in optimizer.state.get(one.key, {}).items():
            if not isinstance(value, torch.Tensor):
                continue
            name, part = f"optimizer/{one.name}/{key}", own(value)
            if part.shape != own(one.key).shape:
                if one.stores and (one.is_whole or not part.dim()):
                    yield TensorPart(name, part, tuple(part.shape), (0,) * part.dim())
            elif one.begin is None:
                # Not a box of the whole tensor: put together by all workers that have a part.
                whole = gathered(as_dtensor(part, one.like))
                if one.stores:
                    yield TensorPart(name, whole, one.whole_shape, (0,) * whole.dim())
            elif one.stores and part.numel():
                yield TensorPart(name, part, one.whole_shape, one.begin)


def numbers(optimizer: torch.optim.Optimizer, stepped: list[SteppedTensor]) -> dict[str, Any]:
    """The entries of an optimizer's state that are plain numbers, by name.

    Raises:
        TypeError: an entry is neither a tensor nor a number.
    """
    found: dict[str, Any] = {}
    for one in stepped:
        for key, value in optimizer.state.get(one.key, {}).items():
            if isinstance(value, torch.Tensor):
                continue
            if not isinstance(value, _PLAIN):
                raise TypeError(
                    f"a checkpoint stores tensors and numbers of an optimizer, and "
                    f"{type(optimizer).__name__} has a {type(value).__name__} as {key!r}: leave "
                    "out checkpoint=, or use another optimizer"
                )
            found[f"optimizer/{one.name}/{key}"] = value
    return found


@torch.no_grad()
def load(
    optimizer: torch.optim.Optimizer, stepped: list[SteppedTensor], stored: Checkpoint
) -> list[str]:
    """Give an optimizer its stored state; return the entries that do not fit its parameters.

    What an optimizer of another kind has stored under other keys is taken over as it is, and
    is not used: optimizers read only their own keys.
    """
    by_name: dict[str, list[str]] = {}
    for path in stored.names("optimizer"):
        name, _, key = path.rpartition("/")
        by_name.setdefault(name, []).append(key)
    groups = {
        id(parameter): group for group in optimizer.param_groups for parameter in group["params"]
    }
    unfit = []
    for one in stepped:
        group = groups.get(id(one.key))
        if group is None:
            continue
        for key in by_name.get(one.name, ()):
            path = f"optimizer/{one.name}/{key}"
            whole = stored.tensor(path)
            if whole.dim() == 1 and whole.numel() == math.prod(one.whole_shape):
                # Servers hold parts of flattened parameters.
                whole = whole.view(one.whole_shape)
            if tuple(whole.shape) == one.whole_shape:
                value = one.cut(whole.to(_dtype(whole, one.key)))
                value = value if is_divided(value) else value.to(own(one.key).device)
            elif whole.dim() == 0 or one.is_whole:
                # The number of steps stays on the host unless a kernel needs it on the device.
                there = group.get("capturable") or group.get("fused") or whole.dim()
                value = whole.to(own(one.key).device) if there else whole
            else:
                unfit.append(path)
                continue
            optimizer.state[one.key][key] = value
        start = f"optimizer/{one.name}/"
        for path, number in stored.manifest.values.items():
            if path.startswith(start):
                optimizer.state[one.key][path[len(start) :]] = number
    return unfit


def _dtype(value: torch.Tensor, parameter: torch.Tensor) -> torch.dtype:
    """Floating numbers have the parameter's type, as in `Optimizer.load_state_dict`."""
    both = value.is_floating_point() and parameter.is_floating_point()
    return parameter.dtype if both else value.dtype
