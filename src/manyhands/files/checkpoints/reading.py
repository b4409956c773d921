"""Reading checkpoints: every file is compared with its SHA-256 before anything of it is used."""

from __future__ import annotations

import hashlib
import math
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec
from safetensors import SafetensorError, safe_open

from manyhands.files.checkpoints.manifest import (
    CHECKPOINTS,
    FORMAT,
    LIMIT,
    MANIFEST,
    MANIFEST_SUM,
    VERSION,
    Manifest,
    sum_line,
)
from manyhands.files.tensor_format import DTYPE_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import torch

_BLOCK: Final = 1 << 20
DIGITS: Final = 12
"""Digits of the name of a generation."""


class DamagedCheckpoint(ValueError):  # noqa: N818 - it says what is there
    """A generation that is not what was written: a file is missing, too short or changed."""


class Checkpoint:
    """One generation of a run's checkpoints.

    Args:
        folder: the folder of the generation.

    Raises:
        DamagedCheckpoint: its manifest cannot be read.
        ValueError: it was written by a later version.

    Example:
        >>> import manyhands as mh
        >>> def whole_model(run: str):
        ...     stored = mh.Checkpoint.latest(run)
        ...     print(stored.samples, stored.manifest.strategy)
        ...     return stored.state_dict()
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = _manifest(folder)
        self.skipped: list[str] = []
        """Why later generations of the run were not taken."""
        self.diverged = ""
        """What is said of this one, if the run diverged."""

    @classmethod
    def latest(cls, run: str | Path) -> Checkpoint:
        """The last checkpoint of a run that is whole.

        Args:
            run: the folder of the run, or of one generation.

        Raises:
            ValueError: there is none.
        """
        from pathlib import Path  # noqa: PLC0415 - needed at run time here alone

        return latest(Path(run))

    @property
    def samples(self) -> int:
        """Samples that the state has been trained on."""
        return self.manifest.samples

    def verify(self) -> None:
        """Compare every file with its size and SHA-256.

        Raises:
            DamagedCheckpoint: one differs.
        """
        for name, known in self.manifest.files.items():
            path = self.folder / name
            try:
                found = path.stat().st_size
                if found != known.bytes:
                    raise DamagedCheckpoint(f"{path} has {found} bytes, and had {known.bytes}")
                digest = hashlib.sha256()
                with path.open("rb") as file:
                    while block := file.read(_BLOCK):
                        digest.update(block)
            except OSError as error:
                raise DamagedCheckpoint(f"{path} cannot be read: {error.strerror}") from error
            if digest.hexdigest() != known.sha256:
                raise DamagedCheckpoint(f"{path} was changed since it was written (SHA-256)")

    def names(self, family: str) -> list[str]:
        """The names of the tensors in a family, without it.

        Args:
            family: "model", "optimizer" or "average".
        """
        start = f"{family}/"
        return [name[len(start) :] for name in self.manifest.tensors if name.startswith(start)]

    def tensor(self, name: str) -> torch.Tensor:
        """A whole tensor, put together from its parts.

        Args:
            name: its name with its family, as `model/fc.weight`.

        Raises:
            DamagedCheckpoint: a part is missing, or has another shape.
        """
        import torch  # noqa: PLC0415 - a checkpoint can be listed without torch

        stored = self.manifest.tensors[name]
        whole = torch.empty(stored.shape, dtype=getattr(torch, stored.dtype))
        filled = 0
        for part in stored.parts:
            piece = self._read(part.file, part.key)
            if tuple(piece.shape) != part.shape or piece.dtype != whole.dtype:
                raise DamagedCheckpoint(f"{part.key!r} in {part.file} is not as the manifest says")
            if part.flat:
                at = part.begin[0]
                whole.view(-1)[at : at + piece.numel()] = piece.view(-1)
            else:
                box = zip(part.begin, part.shape, strict=True)
                whole[tuple(slice(at, at + size) for at, size in box)] = piece
            filled += piece.numel()
        if filled != whole.numel():
            raise DamagedCheckpoint(
                f"{name} has {whole.numel()} elements, of which {filled} are stored"
            )
        return whole

    def own(self, member: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """What one process of the run had for itself: tensors and numbers; empty if unknown.

        Args:
            member: the process, as `worker-0`.
        """
        state = self.manifest.own.get(member)
        if state is None:
            return {}, {}
        return {key: self._read(state.file, key) for key in state.tensors}, state.values

    def state_dict(self, *, average: bool = False) -> dict[str, torch.Tensor]:
        """The parameters and buffers of the whole model, under all of their names.

        Args:
            average: whether to take the moving average of the parameters, if there is one.
        """
        found = {name: self.tensor(f"model/{name}") for name in self.names("model")}
        if average:
            found |= {name: self.tensor(f"average/{name}") for name in self.names("average")}
        aliases = self.manifest.aliases
        return found | {name: found[first] for name, first in aliases.items()}

    def _path(self, file: str) -> Path:
        return self.folder / file

    @cached_property
    def _files(self) -> dict[str, Any]:
        return {}

    def _read(self, file: str, key: str) -> torch.Tensor:
        try:
            if file not in self._files:
                self._files[file] = safe_open(self._path(file), framework="pt")
            tensor: torch.Tensor = self._files[file].get_tensor(key)
        except (OSError, SafetensorError) as error:
            raise DamagedCheckpoint(f"{key!r} cannot be read from {file}: {error}") from error
        return tensor


def _manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
    try:
        if path.stat().st_size > LIMIT:
            raise DamagedCheckpoint(f"{path} has more than {LIMIT} bytes")
        text = path.read_bytes()
        if (folder / MANIFEST_SUM).read_bytes() != sum_line(text):
            raise DamagedCheckpoint(f"{path} was changed since it was written (SHA-256)")
        found = msgspec.json.decode(text)
        version = found.get("version") if isinstance(found, dict) else None
        if isinstance(version, int) and version > VERSION and found.get("format") == FORMAT:
            raise ValueError(
                f"{folder} was written by a later version of manyhands (format {version}; this "
                f"one reads up to {VERSION}): install that version"
            )
        manifest = msgspec.json.decode(text, type=Manifest)
    except (OSError, msgspec.DecodeError) as error:
        raise DamagedCheckpoint(f"{path} cannot be read: {error}") from error
    _check(folder, manifest)
    return manifest


def _check(folder: Path, manifest: Manifest) -> None:
    """Refuse what no run writes, before memory is allocated by it."""
    if manifest.format != FORMAT or manifest.version < 1:
        raise DamagedCheckpoint(f"{folder / MANIFEST} is no manifest of a checkpoint")
    total = sum(file.bytes for file in manifest.files.values())
    named = {part.file for one in manifest.tensors.values() for part in one.parts}
    named |= {one.file for one in manifest.own.values()}
    if named - set(manifest.files) or any("/" in name or "\\" in name for name in manifest.files):
        raise DamagedCheckpoint(f"{folder / MANIFEST} names files that it does not list")
    for name, stored in manifest.tensors.items():
        if stored.dtype not in DTYPE_NAMES or min(stored.shape, default=0) < 0:
            raise DamagedCheckpoint(f"{folder / MANIFEST}: {name} has no valid type and shape")
        if math.prod(stored.shape) > total:
            raise DamagedCheckpoint(f"{folder / MANIFEST}: {name} is larger than all files")


def generations(folder: Path) -> list[Path]:
    """The complete generations in a folder of checkpoints, the latest first."""
    return sorted(_generations(folder), reverse=True)


def _generations(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        for path in folder.iterdir():
            if len(path.name) == DIGITS and path.name.isdigit() and path.is_dir():
                yield path


def latest(run: Path, most: int | None = None) -> Checkpoint:
    """The last generation that is whole.

    Args:
        run: the folder of a run, its folder of checkpoints, or one generation.
        most: leave out those after more samples than this.

    Raises:
        ValueError: there is none; the message says what to do.
    """
    single = (run / MANIFEST).exists()
    folder = run if run.name == CHECKPOINTS else run / CHECKPOINTS
    notes: list[str] = []
    for path in [run] if single else generations(folder):
        if most is not None and int(path.name) > most:
            continue
        try:
            found = Checkpoint(path)
            found.verify()
        except DamagedCheckpoint as damage:
            notes.append(str(damage))
        else:
            found.skipped = notes
            return found
    if notes:
        raise ValueError(f"no checkpoint of {run} is whole: {'; '.join(notes)}")
    raise ValueError(
        f"{run} has no checkpoint: runs store them with Job(checkpoint=mh.every(...)) or "
        "--checkpoint 10min"
    )
