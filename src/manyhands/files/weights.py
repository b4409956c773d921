"""Existing weights: a safetensors file, a sharded one of Hugging Face, or a folder with either.

Tensors are read one by one, so that a process never holds more than one beside its model. Pickle
files are refused: reading one can execute code.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from safetensors import SafetensorError, safe_open

from manyhands.files.checkpoints.manifest import MANIFEST
from manyhands.files.checkpoints.reading import Checkpoint
from manyhands.files.tensor_format import ALIASES, DTYPES, MODEL, add_to_digest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch

INDEX: Final = f"{MODEL}.index.json"
"""The index of a model in several files, as Hugging Face writes it."""
_PICKLES: Final = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle")
_PICKLE_HEADS: Final = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
"""First bytes of `torch.save` files: a zip archive, or a bare pickle of versions 2 to 5."""
_ACCEPTED: Final = (
    f"give a safetensors file, a sharded index ({INDEX}), or a folder with either, such as the "
    "folder of a run"
)


@dataclass(frozen=True)
class StartWeights:
    """The path of weights whose content is known: a path like any other, with a digest."""

    path: str
    digest: str
    """SHA-256, as `Weights.digest` computes it."""

    def __fspath__(self) -> str:
        return self.path

    def __str__(self) -> str:
        return f"{self.path} (sha256 {self.digest[:12]})"


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a safetensors file."""

    file: Path
    dtype: str
    """As torch names it: `float32`."""
    shape: tuple[int, ...]
    begin: int
    """Where its bytes begin in the file."""
    nbytes: int
    name: str = ""
    """Its name, where the file has several parts of it."""

    def read(self) -> torch.Tensor:
        """The tensor, in memory of its own on the CPU.

        Raises:
            EOFError: the file is shorter than its header says.
        """
        import numpy as np  # noqa: PLC0415 - names and shapes need neither
        import torch  # noqa: PLC0415 - see above

        kind = getattr(torch, self.dtype)
        if not self.nbytes:
            return torch.empty(self.shape, dtype=kind, device="cpu")
        # Memory of NumPy: modes of torch, such as a default device, do not apply to it.
        room = np.empty(self.nbytes, dtype=np.uint8)
        done = 0
        with self.file.open("rb", buffering=0) as file:
            file.seek(self.begin)
            # One system call reads at most 2 GiB.
            while done < self.nbytes:
                count = file.readinto(room[done:].data)
                if not count:
                    raise EOFError(
                        f"{self.file} is truncated: a tensor of {self.nbytes} bytes lacks "
                        f"{self.nbytes - done}"
                    )
                done += count
        return torch.from_numpy(room).view(kind).reshape(self.shape)


@dataclass(frozen=True)
class Weights:
    """Tensors of a model by name, read on access."""

    path: Path
    tensors: Mapping[str, StoredTensor]
    """By name; tied tensors under each of their names, if the file has them."""

    def values(self, digest: str | None = None) -> Iterator[tuple[str, torch.Tensor]]:
        """Every tensor, in the order of the names.

        Args:
            digest: the SHA-256 that the weights should have; it is compared after the last tensor.

        Raises:
            ValueError: they have another one.
        """
        total = hashlib.sha256()
        for name in sorted(self.tensors):
            tensor = self.tensors[name].read()
            if digest is not None:
                add_to_digest(total, name, tensor)
            yield name, tensor
        if digest not in (None, total.hexdigest()):
            raise ValueError(
                f"{self.path} is not what it was at the start of the run (sha256 "
                f"{total.hexdigest()[:12]}, expected {digest and digest[:12]}): all processes of a "
                "run need the same weights, on every host and until it ends"
            )

    def digest(self) -> str:
        """SHA-256 of names, types, shapes and bytes; equal to a run's `parameters_digest`."""
        total = hashlib.sha256()
        for name, tensor in self.values():
            add_to_digest(total, name, tensor)
        return total.hexdigest()


def open_weights(path: str | os.PathLike[str]) -> Weights:
    """Open existing weights; only headers are read.

    Args:
        path: a safetensors file, the index of a sharded one, or a folder with either.

    Raises:
        ValueError: there are no such weights; the message says what to give.
    """
    given = Path(os.fspath(path))
    if not given.exists():
        raise ValueError(f"start={os.fspath(path)!r}: there is no {given.resolve()}; {_ACCEPTED}")
    if (given / MANIFEST).is_file():
        return Weights(given, _checkpointed(given))
    file = _in_folder(given) if given.is_dir() else given
    if file.suffix == ".json":
        return Weights(given, _sharded(file))
    return Weights(given, _tensors(file))


class CheckpointTensor(StoredTensor):
    """A tensor in the files of a checkpoint, perhaps in several parts."""

    def read(self) -> torch.Tensor:
        """The tensor, in memory of its own on the CPU."""
        return Checkpoint(self.file).tensor(f"model/{self.name}")


def _checkpointed(folder: Path) -> dict[str, StoredTensor]:
    """The tensors of the model in a checkpoint."""
    stored = Checkpoint(folder).manifest
    found: dict[str, StoredTensor] = {}
    for path, tensor in stored.tensors.items():
        family, _, name = path.partition("/")
        if family == "model":
            found[name] = CheckpointTensor(folder, tensor.dtype, tensor.shape, 0, 0, name)
    return found | {name: found[first] for name, first in stored.aliases.items()}


def _in_folder(folder: Path) -> Path:
    for name in (MODEL, INDEX):
        if (folder / name).is_file():
            return folder / name
    if (folder / "trace").is_dir():
        raise ValueError(
            f"the run in {folder} stored no model: it has not finished. {_ACCEPTED.capitalize()}"
        )
    files = sorted(path for path in folder.iterdir() if path.is_file())
    pickles = [path for path in files if path.suffix in _PICKLES]
    if pickles:
        raise ValueError(f"{folder} has no {MODEL}. {_conversion(pickles[0])}")
    singles = [path.name for path in files if path.suffix == ".safetensors"]
    named = f", but {', '.join(singles[:3])}: give the path of the file" if singles else ""
    raise ValueError(f"{folder} has neither {MODEL} nor {INDEX}{named or f'; {_ACCEPTED}'}")


def _tensors(file: Path) -> dict[str, StoredTensor]:
    """The tensors of one file, tied names included."""
    with file.open("rb") as opened:
        head = opened.read(8)
        if head.startswith(_PICKLE_HEADS) or file.suffix in _PICKLES:
            raise ValueError(_conversion(file))
        # Checks lengths and offsets.
        metadata = _checked(file)
        length = int.from_bytes(head, "little")
        entries = json.loads(opened.read(length))
    entries.pop("__metadata__", None)
    found = {}
    for name, entry in entries.items():
        if entry["dtype"] not in DTYPES:
            raise ValueError(
                f"{name!r} in {file} is of type {entry['dtype']}, which is not supported: "
                f"convert it to one of {', '.join(DTYPES)}"
            )
        begin, end = entry["data_offsets"]
        found[name] = StoredTensor(
            file,
            DTYPES[entry["dtype"]],
            tuple(entry["shape"]),
            8 + length + begin,
            end - begin,
        )
    for name, original in json.loads(metadata.get(ALIASES, "{}")).items():
        found[name] = found[original]
    return found


def _checked(file: Path) -> dict[str, str]:
    """The metadata of a file, after a check of its header."""
    try:
        with safe_open(file, framework="numpy") as opened:
            return opened.metadata() or {}
    except SafetensorError as error:
        raise ValueError(
            f"{file} is not a safetensors file, or is damaged ({error}); {_ACCEPTED}"
        ) from error


def _sharded(index: Path) -> dict[str, StoredTensor]:
    """The tensors of the files that an index names."""
    try:
        files: dict[str, str] = json.loads(index.read_bytes())["weight_map"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{index} is not the index of a sharded model: it has no 'weight_map'; {_ACCEPTED}"
        ) from error
    shards: dict[str, dict[str, StoredTensor]] = {}
    found = {}
    for name, shard in files.items():
        if shard not in shards:
            if Path(shard).name != shard:
                raise ValueError(f"{index} names {shard!r}, which is not a file beside it")
            if not (index.parent / shard).is_file():
                raise ValueError(f"{index} names {shard!r}, which does not exist: copy all shards")
            shards[shard] = _tensors(index.parent / shard)
        if name not in shards[shard]:
            raise ValueError(f"{index} says that {name!r} is in {shard!r}, which does not have it")
        found[name] = shards[shard][name]
    return found


def _conversion(file: Path) -> str:
    """Why a pickle file is refused, and the lines that convert it."""
    return (
        f"{file} is a pickle file, and reading one can execute code. Convert it once, with "
        "torch and safetensors.torch imported:\n"
        f"    state = torch.load({str(file)!r}, weights_only=True)\n"
        "    safetensors.torch.save_file({name: tensor.clone(memory_format="
        "torch.contiguous_format) for name, tensor in state.items()}, "
        f"{str(file.with_suffix('.safetensors'))!r}, metadata={{'format': 'pt'}})"
    )
