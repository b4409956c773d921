"""The trained model as a file: safetensors, written whole or not at all."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from safetensors import safe_open
from safetensors.torch import save_file

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from torch import nn

_ALIASES = "manyhands.aliases"


def save_model(model: nn.Module, path: Path) -> str:
    """Write a model's parameters and buffers; the SHA-256 of their names, shapes and bytes.

    Tensors that share their memory (tied parameters) are written once, and their other names
    are kept in the file's metadata.
    """
    tensors: dict[str, torch.Tensor] = {}
    aliases: dict[str, str] = {}
    first_name: dict[tuple[int, torch.Size, tuple[int, ...]], str] = {}
    for name, tensor in model.state_dict().items():
        key = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if tensor.numel() and key in first_name:
            aliases[name] = first_name[key]
        else:
            first_name[key] = name
            # A clone, because views of one buffer may overlap and safetensors refuses that.
            tensors[name] = tensor.detach().cpu().clone().contiguous()
    unfinished = path.with_suffix(".unfinished")
    save_file(tensors, unfinished, metadata={_ALIASES: json.dumps(aliases)})
    unfinished.replace(path)
    return digest(tensors)


def load_state(path: Path) -> dict[str, torch.Tensor]:
    """The state dict that `save_model` wrote, tied names included."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
        aliases: dict[str, str] = json.loads(file.metadata()[_ALIASES])
    return {**tensors, **{name: tensors[original] for name, original in aliases.items()}}


def digest(tensors: dict[str, torch.Tensor]) -> str:
    """SHA-256 over names, types, shapes and bytes, in the order of the names."""
    import torch  # noqa: PLC0415 - reading a digest's name must not load torch

    total = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        total.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}:".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return total.hexdigest()
