"""The manifest of a checkpoint: what is stored, and in which files."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgspec

CHECKPOINTS: Final = "checkpoints"
"""The subfolder of a run's folder with its checkpoints."""
ASKED: Final = "now"
"""A file of this name in the folder of checkpoints asks for one; it is removed when it is seen."""
MANIFEST: Final = "manifest.json"
MANIFEST_SUM: Final = "manifest.sha256"
"""The SHA-256 of the manifest, as `sha256sum` writes it."""
FORMAT: Final = "manyhands checkpoint"
VERSION: Final = 1
LIMIT: Final = 1 << 28
"""The most bytes of a manifest that are read."""


class ManifestPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of a tensor: a box of it, or a range of its elements in row-major order."""

    file: str
    key: str
    """Its name in the file."""
    begin: tuple[int, ...]
    """Where it begins, in every dimension; the index of its first element if it is `flat`."""
    shape: tuple[int, ...]
    flat: bool = False


class ManifestTensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor, of which every element is in exactly one part."""

    dtype: str
    """As torch names it: `float32`."""
    shape: tuple[int, ...]
    parts: tuple[ManifestPart, ...]

    def with_parts(self, parts: tuple[ManifestPart, ...]) -> ManifestTensor:
        """The same tensor with further parts; of equal ones, which copies have, the first."""
        places = {(part.begin, part.shape, part.flat) for part in self.parts}
        new = (part for part in parts if (part.begin, part.shape, part.flat) not in places)
        return msgspec.structs.replace(self, parts=(*self.parts, *new))


class ManifestFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The size and the SHA-256 of one file."""

    bytes: int
    sha256: str


class PartFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one process stored: joined with those of the others to a manifest."""

    file: ManifestFile
    tensors: dict[str, ManifestTensor]
    values: dict[str, Any]
    """Numbers of the optimizer and of the run, by name; plain JSON."""
    own: tuple[str, ...]
    """Names in the file of tensors that only this process needs."""
    own_values: dict[str, Any]
    """Numbers that only this process needs."""


class OwnState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one process needs to continue as it was, beside what all of them share."""

    file: str
    tensors: tuple[str, ...]
    values: dict[str, Any]


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a checkpoint holds.

    Tensors have names in three families: `model/NAME`, a parameter or buffer of the model;
    `optimizer/NAME/KEY`, an entry of the optimizer's state of a parameter; `average/NAME`, the
    moving average of a parameter.
    """

    samples: int
    """Samples of the run that the state has been trained on: all before, none after."""
    step: int
    """Global batches of the run before it."""
    strategy: str
    workers: int
    seconds: float
    """Seconds of training before it."""
    settings: dict[str, str]
    """The job's settings."""
    tensors: dict[str, ManifestTensor]
    aliases: dict[str, str]
    """Other names of tied tensors of the model, each with the name under which it is stored."""
    values: dict[str, Any]
    own: dict[str, OwnState]
    """By process, such as `worker-0`."""
    files: dict[str, ManifestFile]
    format: str = FORMAT
    version: int = VERSION

    def is_of(self, strategy: str, workers: int) -> bool:
        """Whether it is of a run with this strategy and number of workers."""
        return (self.strategy, self.workers) == (strategy, workers)


class CheckpointPlace(msgspec.Struct, frozen=True):
    """Where in a run a checkpoint is taken; the first process to store has it."""

    samples: int
    step: int
    strategy: str
    workers: int
    seconds: float
    settings: dict[str, str]
    aliases: dict[str, str]


def join(cut: CheckpointPlace, parts: dict[str, PartFile]) -> Manifest:
    """The manifest of what several processes stored, by their names."""
    tensors: dict[str, ManifestTensor] = {}
    values: dict[str, Any] = {}
    own: dict[str, OwnState] = {}
    files: dict[str, ManifestFile] = {}
    for name, part in parts.items():
        file = file_of(name)
        files[file] = part.file
        for tensor, stored in part.tensors.items():
            known = tensors.get(tensor)
            tensors[tensor] = stored if known is None else known.with_parts(stored.parts)
        values |= part.values
        if part.own or part.own_values:
            own[name] = OwnState(file, part.own, part.own_values)
    about = {field: getattr(cut, field) for field in cut.__struct_fields__}
    return Manifest(tensors=tensors, values=values, own=own, files=files, **about)


def sum_line(manifest: bytes) -> bytes:
    """The content of the file with the manifest's SHA-256."""
    return f"{hashlib.sha256(manifest).hexdigest()}  {MANIFEST}\n".encode()


def file_of(member: str) -> str:
    """The file of one process in a generation."""
    return f"{member}.safetensors"
