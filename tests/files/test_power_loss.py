"""A power cut at any moment: what a disk may have kept then, built from a log of all operations.

The operations of a process that stores checkpoints are logged: files that are made, written,
synced, renamed and removed, folders that are synced. A power cut after any of them leaves one of
several states. Bytes of a file that were not synced may be missing, or be zeros in a file of the
right length, as on ext4 with delayed allocation. Names may be as of the last sync of a folder, or
as of now, or as of a moment between: file systems with a journal keep their order. In all of these
states the last generation that was complete, or a later one, must be found, bit for bit.
"""

from __future__ import annotations

import os
import random
import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import torch

from manyhands.files.checkpoints import (
    CHECKPOINTS,
    CheckpointFolder,
    CheckpointPlace,
    MemberState,
    TensorPart,
    latest,
    writing,
)
from manyhands.files.checkpoints.manifest import MANIFEST_SUM

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Inode:
    """A file: what was written, and what of it is on the disk."""

    content: bytearray = field(default_factory=bytearray)
    durable: bytes = b""


@dataclass
class Moment:
    """What a power cut may leave after one operation."""

    names: list[dict[str, Inode]]
    """States of the folder that may be on the disk, by the paths of files."""
    promised: int
    """Samples of the last generation that was complete."""


class Disk:
    """Follows the operations of a process in one folder, and what they make durable."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.names: dict[str, Inode] = {}
        self._since: list[dict[str, Inode]] = [{}]
        """Names since the last sync of a folder."""
        self.promised = 0
        self.log: list[tuple[Moment, dict[int, tuple[bytes, bytes]]]] = []

    def _note(self) -> None:
        self._since.append(dict(self.names))
        self._mark()

    def _mark(self) -> None:
        """What may be on the disk if the power is cut now."""
        files = {id(one): one for names in self._since for one in names.values()}
        contents = {key: (bytes(one.content), one.durable) for key, one in files.items()}
        self.log.append((Moment(list(self._since), self.promised), contents))

    def path(self, path: str | Path) -> str:
        return os.path.relpath(path, self._folder)

    def written(self, descriptor: int, data: bytes) -> None:
        path = self.path(Path(f"/proc/self/fd/{descriptor}").readlink())
        if path not in self.names:
            self.names[path] = Inode()
            self._note()
        self.names[path].content += data
        self._mark()

    def synced(self, descriptor: int) -> None:
        whole = Path(f"/proc/self/fd/{descriptor}").readlink()
        if whole.is_dir():
            self._since = [dict(self.names)]
        elif self.path(whole) in self.names:
            one = self.names[self.path(whole)]
            one.durable = bytes(one.content)
        self._mark()

    def renamed(self, source: Path, target: Path) -> None:
        before, after = self.path(source), self.path(target)
        moved = {}
        for path, one in self.names.items():
            if path == before:
                moved[after] = one
            elif path.startswith(f"{before}/"):
                moved[f"{after}{path[len(before) :]}"] = one
            elif path != after:
                moved[path] = one
        self.names = moved
        self._note()

    def removed(self, path: Path) -> None:
        gone = self.path(path)
        self.names = {
            name: one
            for name, one in self.names.items()
            if name != gone and not name.startswith(f"{gone}/")
        }
        self._note()


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    """Logs what the module that stores checkpoints does in `run`."""
    found = Disk(tmp_path / "run")
    real = SimpleNamespace(
        write=os.write, fsync=os.fsync, rename=Path.rename, replace=Path.replace,
        unlink=Path.unlink, rmtree=shutil.rmtree,
    )  # fmt: skip

    def write(descriptor: int, data: memoryview) -> int:
        # Short writes, as a disk that is nearly full, or a signal, may cause.
        done: int = real.write(descriptor, data[: max(1, len(data) // 2)])
        found.written(descriptor, bytes(data[:done]))
        return done

    def fsync(descriptor: int) -> None:
        real.fsync(descriptor)
        found.synced(descriptor)

    def rename(self: Path, target: Path) -> Path:
        done: Path = real.rename(self, target)
        found.renamed(self, target)
        return done

    def replace(self: Path, target: Path) -> Path:
        done: Path = real.replace(self, target)
        found.renamed(self, target)
        return done

    def unlink(self: Path, missing_ok: bool = False) -> None:
        real.unlink(self, missing_ok=missing_ok)
        found.removed(self)

    def rmtree(path: Path, *, ignore_errors: bool = False) -> None:
        for file in sorted(Path(path).rglob("*")) if Path(path).exists() else ():
            found.removed(file)
        real.rmtree(path, ignore_errors=ignore_errors)

    proxy = SimpleNamespace(
        **{name: getattr(os, name) for name in ("open", "close", "O_RDONLY")},
        write=write,
        fsync=fsync,
    )
    monkeypatch.setattr(writing, "os", proxy)
    monkeypatch.setattr(writing, "shutil", SimpleNamespace(rmtree=rmtree))
    for name, function in (("rename", rename), ("replace", replace), ("unlink", unlink)):
        monkeypatch.setattr(Path, name, function)
    return found


def state(value: float) -> MemberState:
    return MemberState(
        [
            TensorPart("model/weight", torch.full((3, 2), value), (3, 2), (0, 0)),
            TensorPart("model/bias", torch.full((2,), -value), (2,), (0,)),
        ]
    )


def states(moment: Moment, contents: dict[int, tuple[bytes, bytes]]) -> Iterator[dict[str, bytes]]:
    """The contents that files may have after a power cut, by path."""
    ends = {0, len(moment.names) - 1, len(moment.names) // 2}
    for names in (moment.names[at] for at in sorted(ends)):
        for kind in ("durable", "zeros", "half", "all"):
            found = {}
            for path, one in names.items():
                content, durable = contents[id(one)]
                rest = len(content) - len(durable)
                found[path] = {
                    "durable": durable,
                    "zeros": durable + bytes(rest),
                    "half": content[: len(durable) + rest // 2],
                    "all": content,
                }[kind]
            yield found


def test_a_power_cut_at_any_moment_leaves_the_last_generation(disk: Disk, tmp_path: Path) -> None:
    run = tmp_path / "run"
    folder = CheckpointFolder(run / CHECKPOINTS, "worker-0", ("worker-0",), 2, "a")
    for number in range(1, 5):
        cut = CheckpointPlace(8 * number, number, "single()", 1, 1.0, {}, {})
        folder.store(cut, state(float(number)))
        folder.wait()
        assert not folder.failure
        disk.promised = 8 * number
    assert len(disk.log) > 100
    seen: set[int] = set()
    checked = 0
    known: set[frozenset[tuple[str, bytes]]] = set()
    for moment, contents in disk.log:
        for found in states(moment, contents):
            key = frozenset(found.items())
            if not moment.promised or key in known:
                continue
            known.add(key)
            after = tmp_path / "after"
            shutil.rmtree(after, ignore_errors=True)
            for path, content in found.items():
                (after / path).parent.mkdir(parents=True, exist_ok=True)
                (after / path).write_bytes(content)
            stored = latest(after)
            assert stored.samples >= moment.promised
            value = stored.samples / 8
            assert stored.tensor("model/weight").equal(torch.full((3, 2), value))
            assert stored.tensor("model/bias").equal(torch.full((2,), -value))
            seen.add(stored.samples)
            checked += 1
    assert checked > 300
    assert seen == {8, 16, 24, 32}


def test_without_the_sync_of_tensors_a_power_cut_is_noticed(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check itself: what is not synced is lost in some state, and never read as whole."""
    run = tmp_path / "run"
    monkeypatch.setattr(writing.os, "fsync", lambda _: None)
    folder = CheckpointFolder(run / CHECKPOINTS, "worker-0", ("worker-0",), 2, "a")
    folder.store(CheckpointPlace(8, 1, "single()", 1, 1.0, {}, {}), state(1.0))
    folder.wait()
    moment, contents = disk.log[-1]
    lost = 0
    for number, found in enumerate(states(moment, contents)):
        after = tmp_path / f"after-{number}"
        for path, content in found.items():
            (after / path).parent.mkdir(parents=True, exist_ok=True)
            (after / path).write_bytes(content)
        with suppress(ValueError):
            stored = latest(after)
            assert stored.tensor("model/weight").equal(torch.full((3, 2), 1.0))
            continue
        lost += 1
    assert lost


def test_any_subset_of_unsynced_files_is_noticed(tmp_path: Path) -> None:
    """Files of a generation that are missing, empty or cut short, in any combination."""
    run = tmp_path / "run"
    folder = CheckpointFolder(run / CHECKPOINTS, "worker-0", ("worker-0",), 2, "a")
    for number in (1, 2):
        cut = CheckpointPlace(8 * number, number, "single()", 1, 1.0, {}, {})
        folder.store(cut, state(float(number)))
        folder.wait()
    last = run / CHECKPOINTS / f"{16:012}"
    files = {path.name: path.read_bytes() for path in last.iterdir()}
    assert MANIFEST_SUM in files
    rng = random.Random(7)  # noqa: S311 - repeatable
    for _ in range(200):
        for name, content in files.items():
            kept = rng.choice([None, b"", content[: rng.randrange(len(content))], content])
            (last / name).unlink(missing_ok=True)
            if kept is not None:
                (last / name).write_bytes(kept)
        whole = all((last / name).exists() and (last / name).read_bytes() == content
                    for name, content in files.items())  # fmt: skip
        assert latest(run).samples == (16 if whole else 8)
