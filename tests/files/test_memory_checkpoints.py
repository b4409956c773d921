"""Checkpoints in memory: a generation is taken only if every process has completed its file."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from manyhands.files.checkpoints import Checkpoint, CheckpointPlace, MemberState, TensorPart
from manyhands.files.checkpoints import memory as kept
from manyhands.files.checkpoints.memory import MemoryContent, MemoryFile, complete, link


def content(rank: int, samples: int, rows: int = 2) -> MemoryContent:
    place = CheckpointPlace(
        samples=samples, step=samples // 8, strategy="zero()", workers=2, seconds=1.0,
        settings={"seed": "0"}, aliases={},
    )  # fmt: skip
    part = torch.full((rows, 3), float(samples + rank), dtype=torch.bfloat16)
    pieces = [TensorPart("model/weight", part, (2 * rows, 3), (rows * rank, 0))]
    if rank == 0:
        pieces.append(TensorPart("optimizer/weight/step", torch.tensor(samples), (), ()))
        pieces.append(TensorPart("model/empty", torch.empty(0, 4), (0, 4), (0, 0)))
        pieces.append(TensorPart("model/mask", torch.tensor([True, False]), (2,), (0,)))
    own = {"random": torch.tensor([rank], dtype=torch.uint8)}
    return MemoryContent(f"worker-{rank}", place, MemberState(pieces, {}, own, {"rank": rank}))


class Memory:
    """One generation of two processes."""

    def __init__(self) -> None:
        self.descriptors = [os.memfd_create("test") for _ in range(4)]
        self.paths = [f"/proc/{os.getpid()}/fd/{one}" for one in self.descriptors[:2]]
        self.files = [MemoryFile(path) for path in self.paths]

    def complete(self) -> kept.Manifest | None:
        return complete(self.descriptors[:2])

    def close(self) -> None:
        for one in self.descriptors:
            os.close(one)


@pytest.fixture
def memory() -> Iterator[Memory]:
    made = Memory()
    yield made
    made.close()


def test_a_generation_in_memory_is_read_as_one_on_the_disk(memory: Memory, tmp_path: Path) -> None:
    assert memory.complete() is None
    memory.files[0].write(content(0, 64))
    assert memory.complete() is None
    memory.files[1].write(content(1, 64))
    manifest = memory.complete()
    assert manifest is not None
    link(tmp_path / "memory", manifest, memory.paths, tuple(memory.descriptors[2:]))
    found = Checkpoint(tmp_path / "memory")
    assert (found.samples, found.manifest.step) == (64, 8)
    whole = torch.cat([torch.full((2, 3), 64.0), torch.full((2, 3), 65.0)]).bfloat16()
    assert found.tensor("model/weight").equal(whole)
    assert found.tensor("optimizer/weight/step").item() == 64
    assert found.tensor("model/empty").shape == (0, 4)
    assert found.tensor("model/mask").tolist() == [True, False]
    tensors, values = found.own("worker-1")
    assert (tensors["own/random"].tolist(), values) == ([1], {"rank": 1})


def test_files_of_different_cuts_are_no_generation(memory: Memory) -> None:
    memory.files[0].write(content(0, 64))
    memory.files[1].write(content(1, 72))
    assert memory.complete() is None
    memory.files[0].write(content(0, 72))
    assert memory.complete() is not None


@pytest.mark.parametrize("rows", [2, 5])
@pytest.mark.parametrize("at", range(1, 6))
def test_a_kill_while_a_file_is_written_leaves_none(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, at: int, rows: int
) -> None:
    """Over a whole file of the same size, and of another one."""
    for rank in range(2):
        memory.files[rank].write(content(rank, 64))
    copied, copy = 0, kept._copy

    def fatal(*about: object) -> int:
        nonlocal copied
        copied += 1
        if copied == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return copy(*about)

    monkeypatch.setattr(kept, "_copy", fatal)
    child = os.fork()
    if child == 0:
        MemoryFile(memory.paths[0]).write(content(0, 72, rows))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    assert memory.complete() is None
    monkeypatch.setattr(kept, "_copy", copy)
    for rank in range(2):
        memory.files[rank].write(content(rank, 80, rows))
    manifest = memory.complete()
    assert manifest is not None
    assert manifest.samples == 80


def test_a_header_larger_than_its_file_is_not_read(memory: Memory) -> None:
    for rank in range(2):
        memory.files[rank].write(content(rank, 64))
    os.pwrite(memory.descriptors[1], (1 << 40).to_bytes(8, "little"), 0)
    assert memory.complete() is None
