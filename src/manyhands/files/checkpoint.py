"""Checkpoint files: tensors in safetensors format, written atomically and without copies."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

from safetensors import safe_open

from manyhands.files.disk_space import stored_patiently
from manyhands.files.tensor_format import (
    ALIASES,
    DTYPE_NAMES,
    DTYPES,
    METADATA,
    MODEL,
    add_to_digest,
    tensor_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import torch
    from torch import nn


def member_file(rank: int) -> str:
    """The file name of one replica of an ensemble, in the run's folder.

    >>> member_file(0), member_file(3)
    ('model.safetensors', 'model-3.safetensors')
    """
    return f"model-{rank}.safetensors" if rank else MODEL


@dataclass(frozen=True, eq=False)
class Entry:
    """A tensor of a model's state, fetched when it is needed."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    fetch: Callable[[], torch.Tensor]
    """Returns the tensor on the CPU. If it is sharded, all workers that hold a shard call it."""


@dataclass(frozen=True, eq=False)
class State:
    """The state of a model as stored in its file; tensors are fetched one by one."""

    entries: Mapping[str, Entry]
    aliases: Mapping[str, str]
    """Other names of the same tensors (tied parameters), each with the name in the file."""

    @classmethod
    def of(cls, model: nn.Module) -> State:
        """The state of a model that this process holds completely."""
        entries: dict[str, Entry] = {}
        aliases: dict[str, str] = {}
        first_name: dict[tuple[int, torch.dtype, torch.Size, tuple[int, ...]], str] = {}
        for name, tensor in model.state_dict().items():
            key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
            if tensor.numel() and key in first_name:
                aliases[name] = first_name[key]
            else:
                first_name[key] = name
                entries[name] = Entry(tensor.dtype, tuple(tensor.shape), _fetch(tensor))
        return cls(entries, aliases)

    def save(self, path: Path) -> str:
        """Write it; return the SHA-256 of names, types, shapes and bytes, as `digest` does.

        Tensors are written one after the other, so that only one is in memory at a time.

        Raises:
            Rescued: the disk is full, and the model is complete in another place.
        """
        total = hashlib.sha256()
        with _unfinished(path, rescued=path.name) as file:
            ordered = {name: self.entries[name] for name in sorted(self.entries)}
            file.write(
                safetensors_head(ordered, METADATA | {ALIASES: json.dumps(dict(self.aliases))})
            )
            for name, tensor in self.fetch():
                add_to_digest(total, name, tensor)
                if name in self.entries:
                    file.write(tensor_bytes(tensor))
            # A run is finished once its model file exists: then it must be on the disk.
            file.flush()
            os.fsync(file.fileno())
        return total.hexdigest()

    def fetch(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every tensor under each of its names, in the order of the names.

        Workers that do not write the file iterate as well: fetching needs their shards.
        """
        for name in sorted({*self.entries, *self.aliases}):
            yield name, self.entries[self.aliases.get(name, name)].fetch()


def save_model(model: nn.Module, path: Path) -> str:
    """Write a model's parameters and buffers; return the SHA-256 of names, shapes and bytes.

    Tensors that share memory (tied parameters) are written once, and their other names are stored
    in the file's metadata.
    """
    return State.of(model).save(path)


def check_savable(model: nn.Module) -> None:
    """Raise ValueError if the model's state has an entry that cannot be stored."""
    import torch  # noqa: PLC0415 - naming a digest must not load torch

    for name, value in model.state_dict().items():
        if not isinstance(value, torch.Tensor):
            raise ValueError(  # noqa: TRY004 - a value of the model, refused as all others
                f"the model's state {name!r} is a {type(value).__name__}, but a model file stores "
                "only tensors: let get_extra_state return a tensor, or remove it"
            )
        if str(value.dtype).removeprefix("torch.") not in DTYPE_NAMES:
            remedy = "convert it, or register it with persistent=False"
            if value.dtype.is_complex:
                remedy = "use complex64, or two real tensors (torch.view_as_real)"
            raise ValueError(
                f"the model's tensor {name!r} has the type {value.dtype}, which a safetensors file "
                f"cannot store: {remedy}"
            )


def _fetch(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    return lambda: tensor.detach().cpu().contiguous()


def load_state(path: Path) -> dict[str, torch.Tensor]:
    """The state dict that `save_model` wrote, tied names included."""
    tensors, metadata = read_tensors(path)
    aliases: dict[str, str] = json.loads(metadata[ALIASES])
    return _with_aliases(tensors, aliases)


def _with_aliases(
    tensors: dict[str, torch.Tensor], aliases: dict[str, str]
) -> dict[str, torch.Tensor]:
    return {**tensors, **{name: tensors[original] for name, original in aliases.items()}}


def write_tensors(
    path: Path,
    tensors: Mapping[str, torch.Tensor],
    metadata: Mapping[str, str],
    *,
    durable: bool = False,
) -> None:
    """Write contiguous tensors in safetensors format, without copying them first.

    The file gets its name only when it is complete: a process that is killed here leaves the old
    file. A durable file is on the disk before it replaces the old one.
    """
    with _unfinished(path, durable=durable) as file:
        file.write(safetensors_head(tensors, metadata))
        for tensor in tensors.values():
            file.write(tensor_bytes(tensor))


@contextlib.contextmanager
def _unfinished(path: Path, *, durable: bool = False, rescued: str = "") -> Iterator[BinaryIO]:
    """A temporary file that is renamed to `path` when it is complete."""
    unfinished = path.with_suffix(".unfinished")
    with stored_patiently(unfinished, name=rescued) as file:
        yield file
        if durable:
            file.flush()
            os.fsync(file.fileno())
    unfinished.replace(path)
    if durable:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def safetensors_head(
    entries: Mapping[str, Entry | torch.Tensor], metadata: Mapping[str, str]
) -> bytes:
    """The safetensors header; the tensors' bytes follow in the order of the entries."""
    head: dict[str, object] = {"__metadata__": dict(metadata)}
    at = 0
    for name, entry in entries.items():
        end = at + math.prod(entry.shape) * entry.dtype.itemsize
        head[name] = {
            "dtype": DTYPE_NAMES[str(entry.dtype).removeprefix("torch.")],
            "shape": list(entry.shape),
            "data_offsets": [at, end],
        }
        at = end
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def read_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Read a file that `write_tensors` wrote: tensors and metadata."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
        return tensors, file.metadata() or {}


class StoredTensors(Mapping[str, "torch.Tensor"]):
    """Tensors that are read on access, each time into new memory.

    Args:
        readers: by name, a function that reads the tensor.
    """

    def __init__(self, readers: Mapping[str, Callable[[], torch.Tensor]]) -> None:
        self._readers = readers

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._readers[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)


def open_tensors(path: Path) -> tuple[StoredTensors, dict[str, str]]:
    """Open a file that `write_tensors` wrote; its tensors are read one by one, on access."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        head = json.loads(file.read(length))
    metadata = head.pop("__metadata__", {})
    readers = {
        name: partial(_read, path, about["dtype"], about["shape"], 8 + length + at)
        for name, about in head.items()
        for at in about["data_offsets"][:1]
    }
    return StoredTensors(readers), metadata


def _read(path: Path, name: str, shape: list[int], at: int) -> torch.Tensor:
    import torch  # noqa: PLC0415 - naming a digest must not load torch

    tensor = torch.empty(shape, dtype=getattr(torch, DTYPES[name]))
    room, done = tensor_bytes(tensor), 0
    with path.open("rb", buffering=0) as file:
        file.seek(at)
        # One system call reads at most 2 GiB.
        while done < len(room):
            count = file.readinto(room[done:])
            if not count:
                raise EOFError(
                    f"{path} is truncated: a tensor of {len(room)} bytes lacks {len(room) - done}"
                )
            done += count
    return tensor


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over names, types, shapes and bytes, in the order of the names."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        add_to_digest(total, name, tensors[name].contiguous())
    return total.hexdigest()
