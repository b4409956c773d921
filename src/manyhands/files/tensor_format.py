"""The format of model files: names of types and metadata in safetensors, and the digest."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import hashlib

    import torch

MODEL = "model.safetensors"
"""The trained model, in the run's folder."""
AVERAGE = "model-ema.safetensors"
"""The moving average of the model, beside it, if the job asks for one."""
ALIASES = "manyhands.aliases"
"""The key of the metadata with the other names of tied tensors."""
METADATA = {"format": "pt"}
"""What other programs look for, such as `from_pretrained` of transformers."""


def add_to_digest(total: hashlib._Hash, name: str, tensor: torch.Tensor) -> None:
    """Add a contiguous tensor to a digest: name, type, shape and bytes."""
    total.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}:".encode())
    total.update(tensor_bytes(tensor))


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU, without a copy."""
    import torch  # noqa: PLC0415 - naming a digest must not load torch

    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data


DTYPE_NAMES = {
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
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
}
"""The safetensors names of torch's dtypes."""
DTYPES = {theirs: ours for ours, theirs in DTYPE_NAMES.items()}
"""Torch's names of dtypes, by those of safetensors."""
