"""Checkpoints in memory: two generations of safetensors files, each whole or absent.

Every process has two files in memory that another process owns, so they outlive it. It writes them
in turn, so that one of them is whole while the other is written:

    generation 0    worker-0    worker-1    …       of steps 10, 30, 50, …
    generation 1    worker-0    worker-1    …       of steps 20, 40, 60, …

The size of a safetensors header is the file's first eight bytes. They are zeros while the file is
written, and are set when everything after them is there: a process that is killed meanwhile leaves
a file that is not taken. The header's metadata has what a `PartFile` and the manifest say on the
disk. A generation is complete if the files of all processes are whole and of the same cut.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from manyhands.files.checkpoint import safetensors_head
from manyhands.files.checkpoints.manifest import (
    LIMIT,
    MANIFEST,
    MANIFEST_SUM,
    CheckpointPlace,
    Manifest,
    ManifestFile,
    PartFile,
    file_of,
    join,
    sum_line,
)
from manyhands.files.checkpoints.parts import describe
from manyhands.files.checkpoints.reading import Checkpoint, DamagedCheckpoint
from manyhands.files.tensor_format import METADATA

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from manyhands.files.checkpoints.parts import MemberState

GENERATIONS: Final = 2
_SIZE: Final = 8
"""Bytes of the size of the header."""
_CUT, _PART = "manyhands.cut", "manyhands.part"


class MemoryFile:
    """The file of one process in one generation.

    Args:
        path: where the memory can be opened, such as `/proc/123/fd/4`.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._bytes: torch.Tensor | None = None

    def write(self, content: MemoryContent) -> None:
        """Write it; until this returns, or if it raises, the file is not whole.

        Raises:
            OSError: there is not enough memory.
        """
        memory = self.make_room(content.size)
        head = content.head
        memory[_SIZE : len(head)].copy_(_as_tensor(head[_SIZE:]))
        at = len(head)
        for tensor in content.tensors.values():
            at += _copy(tensor, memory, at)
        memory[:_SIZE].copy_(_as_tensor(head[:_SIZE]))

    def make_room(self, size: int) -> torch.Tensor:
        """Make it a file of so many bytes, which is not whole; return them.

        Raises:
            OSError: there is not enough memory.
        """
        if self._bytes is None or len(self._bytes) != size:
            self._bytes = self._map(size)
        self._bytes[:_SIZE] = 0
        return self._bytes

    @property
    def content(self) -> torch.Tensor:
        """Its bytes; what is written to them is in the file."""
        if self._bytes is None:
            self._bytes = self._map()
        return self._bytes

    def clear(self) -> None:
        """Free its memory."""
        self._bytes = None
        os.truncate(self._path, 0)

    def _map(self, size: int | None = None) -> torch.Tensor:
        """All bytes of the file; of a new one, if there is a size."""
        import torch  # noqa: PLC0415 - a generation can be found without torch

        opened = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if size is not None:
                # First to zero bytes: what was there is not a whole file of another size.
                os.ftruncate(opened, 0)
                os.posix_fallocate(opened, 0, size)
            length = os.fstat(opened).st_size
            return torch.frombuffer(mmap.mmap(opened, length), dtype=torch.uint8)
        finally:
            os.close(opened)


class MemoryContent:
    """What one process stores in one generation; its tensors are not copied yet.

    Args:
        member: the process, as `worker-0`.
        cut: where in the run it is.
        state: what the process stores.
    """

    def __init__(self, member: str, cut: CheckpointPlace, state: MemberState) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        about = describe(member, state, self.tensors.__setitem__)
        texts = {_CUT: msgspec.json.encode(cut), _PART: msgspec.json.encode(about)}
        metadata = METADATA | {name: text.decode() for name, text in texts.items()}
        self.head = safetensors_head(self.tensors, metadata)
        sizes = (one.numel() * one.element_size() for one in self.tensors.values())
        self.size = len(self.head) + sum(sizes)
        """Bytes of the file."""


def _copy(tensor: torch.Tensor, memory: torch.Tensor, at: int) -> int:
    """Copy a tensor, of any device, to a place in memory; the number of its bytes."""
    flat = tensor.detach().reshape(-1).view(memory.dtype)
    memory[at : at + len(flat)].copy_(flat)
    return len(flat)


def _as_tensor(content: bytes) -> torch.Tensor:
    import torch  # noqa: PLC0415 - see above

    return torch.frombuffer(bytearray(content), dtype=torch.uint8)


def complete(descriptors: Sequence[int]) -> Manifest | None:
    """The manifest of a generation; None if it is not complete.

    Args:
        descriptors: the memory of its files, in the order of the workers.
    """
    cuts: list[CheckpointPlace] = []
    parts: dict[str, PartFile] = {}
    for rank, descriptor in enumerate(descriptors):
        found = _read_head(descriptor)
        if found is None:
            return None
        cuts.append(found[0])
        parts[f"worker-{rank}"] = found[1]
    if len({(cut.samples, cut.step) for cut in cuts}) != 1:
        return None
    return join(cuts[0], parts)


def _read_head(descriptor: int) -> tuple[CheckpointPlace, PartFile] | None:
    size = os.fstat(descriptor).st_size
    length = int.from_bytes(os.pread(descriptor, _SIZE, 0), "little")
    if not 0 < length <= min(LIMIT, size - _SIZE):
        return None
    head = msgspec.json.decode(os.pread(descriptor, length, _SIZE))
    metadata = head["__metadata__"]
    cut = msgspec.json.decode(metadata[_CUT], type=CheckpointPlace)
    part = msgspec.json.decode(metadata[_PART], type=PartFile)
    return cut, msgspec.structs.replace(part, file=ManifestFile(size, ""))


def samples_in(path: str) -> int:
    """The samples of the run that are in a file in memory; -1 if it is not whole.

    Args:
        path: where it can be opened.
    """
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = _read_head(opened)
    finally:
        os.close(opened)
    return -1 if found is None else found[0].samples


def link(folder: Path, manifest: Manifest, paths: Sequence[str], memory: tuple[int, int]) -> None:
    """Make a folder that `Checkpoint` reads as a generation; its files are links to memory.

    Args:
        folder: a folder that does not exist yet.
        manifest: that of the generation.
        paths: where the files can be opened, in the order of the workers.
        memory: descriptors of this process for the manifest and for its SHA-256.
    """
    folder.mkdir()
    text = msgspec.json.encode(manifest)
    for name, descriptor, content in zip(
        (MANIFEST, MANIFEST_SUM), memory, (text, sum_line(text)), strict=True
    ):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, content, 0)
        (folder / name).symlink_to(f"/proc/{os.getpid()}/fd/{descriptor}")
    for rank, path in enumerate(paths):
        (folder / file_of(f"worker-{rank}")).symlink_to(path)


class HandedOver(Checkpoint):
    """The state that processes of this host have written into memory of their own.

    Args:
        paths: where their files can be opened, in order.

    Raises:
        DamagedCheckpoint: one of them is not whole.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        opened: list[int] = []
        try:
            opened += [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in paths]
            manifest = complete(opened)
        except OSError as error:
            raise DamagedCheckpoint(
                f"a process with a part of the state is gone: {error}"
            ) from error
        finally:
            for one in opened:
                os.close(one)
        if manifest is None:
            raise DamagedCheckpoint("a part of the state in memory is not whole")
        self.folder, self.manifest, self.skipped = Path(), manifest, []
        self._paths = {file_of(f"worker-{rank}"): path for rank, path in enumerate(paths)}

    def _path(self, file: str) -> Path:
        return Path(self._paths[file])
