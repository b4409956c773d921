"""Tensors as a file: safetensors, written whole or not at all, from where they lie in memory."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from safetensors import safe_open

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    import torch
    from torch import nn

_ALIASES = "manyhands.aliases"


MODEL = "model.safetensors"
"""The trained model, in the run's folder."""


def member_file(rank: int) -> str:
    """Where one member of a committee is stored, beside the first.

    >>> member_file(0), member_file(3)
    ('model.safetensors', 'model-3.safetensors')
    """
    return f"model-{rank}.safetensors" if rank else MODEL


def save_model(model: nn.Module, path: Path) -> str:
    """Write a model's parameters and buffers; the SHA-256 of their names, shapes and bytes.

    Tensors that share their memory (tied parameters) are written once, and their other names
    are kept in the file's metadata.
    """
    tensors: dict[str, torch.Tensor] = {}
    aliases: dict[str, str] = {}
    first_name: dict[tuple[int, torch.dtype, torch.Size, tuple[int, ...]], str] = {}
    for name, tensor in model.state_dict().items():
        key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() and key in first_name:
            aliases[name] = first_name[key]
        else:
            first_name[key] = name
            tensors[name] = tensor.detach().cpu().contiguous()
    write_tensors(path, tensors, {_ALIASES: json.dumps(aliases)})
    return digest(_with_aliases(tensors, aliases))


def load_state(path: Path) -> dict[str, torch.Tensor]:
    """The state dict that `save_model` wrote, tied names included."""
    tensors, metadata = read_tensors(path)
    aliases: dict[str, str] = json.loads(metadata[_ALIASES])
    return _with_aliases(tensors, aliases)


def _with_aliases(
    tensors: dict[str, torch.Tensor], aliases: dict[str, str]
) -> dict[str, torch.Tensor]:
    return {**tensors, **{name: tensors[original] for name, original in aliases.items()}}


def write_tensors(
    path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]
) -> None:
    """Write contiguous tensors in safetensors' format, without copying them first.

    The file appears under its name only when it is complete: who is killed here leaves the old one.
    """
    head: dict[str, object] = {"__metadata__": dict(metadata)}
    at = 0
    for name, tensor in tensors.items():
        end = at + tensor.numel() * tensor.element_size()
        head[name] = {
            "dtype": _NAMES[str(tensor.dtype).removeprefix("torch.")],
            "shape": list(tensor.shape),
            "data_offsets": [at, end],
        }
        at = end
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    unfinished = path.with_suffix(".unfinished")
    with unfinished.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for tensor in tensors.values():
            file.write(_bytes(tensor))
    unfinished.replace(path)


def read_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """What `write_tensors` wrote."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
        return tensors, file.metadata() or {}


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over names, types, shapes and bytes, in the order of the names."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        total.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}:".encode())
        total.update(_bytes(tensor))
    return total.hexdigest()


def _bytes(tensor: torch.Tensor) -> memoryview:
    import torch  # noqa: PLC0415 - naming a digest must not load torch

    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data


_NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
"""safetensors' names for torch's types."""
