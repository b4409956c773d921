"""Writing checkpoints: copied to memory at once, and written by a thread while training goes on."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
import threading
import time
from typing import TYPE_CHECKING, Final

import msgspec

from manyhands.files.checkpoint import safetensors_head
from manyhands.files.checkpoints.manifest import (
    MANIFEST,
    MANIFEST_SUM,
    CheckpointPlace,
    ManifestFile,
    PartFile,
    file_of,
    join,
    sum_line,
)
from manyhands.files.checkpoints.parts import describe
from manyhands.files.checkpoints.reading import DIGITS, generations
from manyhands.files.checkpoints.remote import Uploads
from manyhands.files.disk_space import is_full
from manyhands.files.tensor_format import METADATA, tensor_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    import torch

    from manyhands.files.checkpoints.parts import MemberState

_PATIENCE: Final = 300.0
"""Seconds for which the first process waits for what the others store."""
_POLL: Final = 0.005
_BLOCK: Final = 1 << 22
_FAILED: Final = ".failed"
_UNFINISHED: Final = ".unfinished"
_REMOVED: Final = ".removed"


class CheckpointFolder:
    """One process's side of a run's checkpoints.

    All processes of a run store into one folder. The first of them waits for the files of the
    others, writes the manifest and renames the folder.

    Args:
        folder: the folder of the checkpoints.
        member: this process, as `worker-0`.
        members: all processes that store, the first one first.
        keep: number of generations that are kept.
        attempt: distinguishes this run from earlier ones that used the same folder.
        url: where the first process copies complete generations to; empty for nowhere.
        note: called in the first process if a generation was not stored: its samples, and why.
    """

    def __init__(
        self,
        folder: Path,
        member: str,
        members: tuple[str, ...],
        keep: int,
        attempt: str,
        url: str = "",
        note: Callable[[int, str], None] | None = None,
    ) -> None:
        self._note = note
        self._folder = folder
        self._member = member
        self._members = members
        self._keep = keep
        self._attempt = attempt
        self._room: dict[str, torch.Tensor] = {}
        """Copies of the tensors of the last checkpoint; their memory is used again."""
        self._abandoned = False
        self._writer: threading.Thread | None = None
        self._url = url
        self._uploads: Uploads | None = None
        self.stored = 0
        """Generations that this process has stored its part of."""
        self.failure = ""
        """Why the last generation was not stored; empty if it was."""
        self.stalled = 0.0
        """Seconds for which the last call of `store` did not return."""

    def store(
        self,
        cut: CheckpointPlace,
        state: MemberState,
        members: tuple[str, ...] | None = None,
        attempt: str | None = None,
    ) -> None:
        """Copy the state to memory; a thread writes it. Waits for the generation before.

        Args:
            cut: where in the run it is; of the first process, it becomes part of the manifest.
            state: what this process stores.
            members: the processes that store this time, if they are others.
            attempt: as in the class, if it is another.
        """
        begun = time.monotonic()
        self._join()
        self._abandoned = False
        self._members = members or self._members
        self._attempt = attempt or self._attempt
        room: dict[str, torch.Tensor] = {}

        def take(key: str, tensor: torch.Tensor) -> None:
            room[key] = self._copied(key, tensor)

        about = describe(self._member, state, take)
        self._room = room
        self._writer = threading.Thread(
            target=self._write, args=(cut, about), name="checkpoint", daemon=True
        )
        self._writer.start()
        self.stalled = time.monotonic() - begun

    def _copied(self, key: str, tensor: torch.Tensor) -> torch.Tensor:
        import torch  # noqa: PLC0415 - the class is also named where torch is not loaded

        kept = self._room.get(key)
        if kept is None or kept.shape != tensor.shape or kept.dtype != tensor.dtype:
            kept = torch.empty(tensor.shape, dtype=tensor.dtype)
        kept.copy_(tensor.detach())
        return kept

    def abandon(self) -> None:
        """Do not wait for other processes any more: one of them is lost."""
        self._abandoned = True

    def wait(self) -> None:
        """Wait until what was given to `store` is written, and copied to the URL."""
        self._join()
        if self._uploads is not None:
            self._uploads.finish()

    def _join(self) -> None:
        if self._writer is not None:
            self._writer.join()
            self._writer = None

    def _write(self, cut: CheckpointPlace, about: PartFile) -> None:
        _lower_priority()
        name = f"{cut.samples:0{DIGITS}}"
        unfinished = self._folder / f".{name}.{self._attempt}{_UNFINISHED}"
        self.failure = ""
        try:
            unfinished.mkdir(parents=True, exist_ok=True)
            file = self._write_tensors(unfinished / file_of(self._member))
            about = msgspec.structs.replace(about, file=file)
            _write_durably(unfinished / f"{self._member}.json", msgspec.json.encode(about))
            if self._member == self._members[0]:
                self._complete(cut, unfinished, self._folder / name)
            self.stored += 1
        except (OSError, _Abandoned) as error:
            self.failure = str(error)
            with contextlib.suppress(OSError):
                (unfinished / f"{self._member}{_FAILED}").touch()
            kind = "the disk is full" if isinstance(error, OSError) and is_full(error) else error
            _say(f"warning: the checkpoint after {cut.samples} samples was not stored: {kind}")
            if self._member == self._members[0]:
                shutil.rmtree(unfinished, ignore_errors=True)
                if self._note is not None:
                    self._note(cut.samples, str(kind))

    def _write_tensors(self, path: Path) -> ManifestFile:
        digest, size = hashlib.sha256(), 0
        with path.open("wb", buffering=0) as file:
            for block in self._blocks():
                digest.update(block)
                size += len(block)
                _write_all(file.fileno(), block)
            os.fsync(file.fileno())
        return ManifestFile(size, digest.hexdigest())

    def _blocks(self) -> Iterable[memoryview]:
        """The content of the file."""
        yield memoryview(safetensors_head(self._room, METADATA))
        for tensor in self._room.values():
            whole = tensor_bytes(tensor)
            for at in range(0, len(whole), _BLOCK):
                yield whole[at : at + _BLOCK]

    def _complete(self, cut: CheckpointPlace, unfinished: Path, final: Path) -> None:
        """Write the manifest when all processes have stored, and give the folder its name."""
        parts = {member: self._await(unfinished, member) for member in self._members}
        manifest = msgspec.json.format(msgspec.json.encode(join(cut, parts)), indent=1)
        _write_durably(unfinished / MANIFEST, manifest)
        _write_durably(unfinished / MANIFEST_SUM, sum_line(manifest))
        for member in self._members:
            (unfinished / f"{member}.json").unlink()
        _sync_folder(unfinished)
        if final.exists():
            # The state after as many samples, of an earlier attempt that was continued from before.
            _remove(final)
        unfinished.rename(final)
        _sync_folder(self._folder)
        # The folder of checkpoints itself may be new.
        _sync_folder(self._folder.parent)
        if self._url:
            self._uploads = self._uploads or Uploads(self._url, self._keep, _say)
            self._uploads.add(final)
        for old in generations(self._folder)[self._keep :]:
            if self._uploads is None or not self._uploads.needs(old):
                _remove(old)

    def _await(self, unfinished: Path, member: str) -> PartFile:
        path, begun = unfinished / f"{member}.json", time.monotonic()
        while not path.exists():
            if (unfinished / f"{member}{_FAILED}").exists():
                raise _Abandoned(f"{member} could not store its part")
            if self._abandoned:
                raise _Abandoned(f"{member} was lost")
            if time.monotonic() - begun > _PATIENCE:
                raise _Abandoned(f"{member} has not stored its part for {_PATIENCE:.0f} s")
            time.sleep(_POLL)
        return msgspec.json.decode(path.read_bytes(), type=PartFile)


def _lower_priority() -> None:
    """Let this thread compute when training does not: sums take a tenth of a second per 40 MB."""
    with contextlib.suppress(OSError, AttributeError):
        # On Linux the priority of a thread, by its number.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)


class _Abandoned(Exception):  # noqa: N818 - it is an event of this module
    """A generation that cannot be completed."""


def sweep(folder: Path) -> None:
    """Remove what earlier runs left unfinished in a folder of checkpoints."""
    if folder.is_dir():
        for path in folder.iterdir():
            if path.name.startswith(".") and path.name.endswith((_UNFINISHED, _REMOVED)):
                shutil.rmtree(path, ignore_errors=True)


def _remove(generation: Path) -> None:
    """Remove a generation; one that is half removed is not taken for a whole one."""
    removed = generation.with_name(f".{generation.name}{_REMOVED}")
    shutil.rmtree(removed, ignore_errors=True)
    generation.rename(removed)
    shutil.rmtree(removed, ignore_errors=True)


def _write_durably(path: Path, content: bytes) -> None:
    """Write a file that has its name only when it is complete and on the disk."""
    unfinished = path.with_name(f".{path.name}")
    with unfinished.open("wb", buffering=0) as file:
        _write_all(file.fileno(), memoryview(content))
        os.fsync(file.fileno())
    unfinished.replace(path)


def _write_all(descriptor: int, content: memoryview | bytes) -> None:
    # One system call writes at most 2 GiB, and may write less.
    view, done = memoryview(content), 0
    while done < len(view):
        done += os.write(descriptor, view[done:])


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _say(words: str) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{words}\n")
        sys.stderr.flush()
