"""Files of checkpoints: whole or absent, and every damage is found."""

import json
import os
import random
import resource
import shutil
import signal
from pathlib import Path

import pytest
import torch

from manyhands.files.checkpoints import (
    CHECKPOINTS,
    Checkpoint,
    CheckpointFolder,
    CheckpointPlace,
    DamagedCheckpoint,
    MemberState,
    TensorPart,
    generations,
    latest,
    sweep,
)
from manyhands.files.checkpoints.manifest import sum_line


def place(samples: int) -> CheckpointPlace:
    return CheckpointPlace(
        samples=samples, step=samples // 8, strategy="single()", workers=2, seconds=1.0,
        settings={"seed": "0"}, aliases={},
    )  # fmt: skip


def state(value: float, rank: int = 0) -> MemberState:
    rows = torch.full((2, 3), value + rank)
    pieces = [TensorPart("model/weight", rows, (4, 3), (2 * rank, 0))]
    if rank == 0:
        pieces.append(TensorPart("optimizer/weight/step", torch.tensor(value), (), ()))
    own = {"random": torch.tensor([rank], dtype=torch.uint8)}
    return MemberState(pieces, {"run/x": "1"} if rank == 0 else {}, own, {"rank": rank})


def store(run: Path, samples: int, value: float, keep: int = 3) -> list[CheckpointFolder]:
    members = ("worker-0", "worker-1")
    folders = [CheckpointFolder(run / CHECKPOINTS, one, members, keep, "a") for one in members]
    for rank, folder in enumerate(folders):
        folder.store(place(samples), state(value, rank))
    for folder in folders:
        folder.wait()
    return folders


def test_parts_of_several_processes_are_one_tensor(tmp_path: Path) -> None:
    store(tmp_path, 64, 1.0)
    found = latest(tmp_path)
    assert found.samples == 64
    assert found.skipped == []
    whole = torch.cat([torch.full((2, 3), 1.0), torch.full((2, 3), 2.0)])
    assert found.tensor("model/weight").equal(whole)
    assert found.tensor("optimizer/weight/step").equal(torch.tensor(1.0))
    assert found.state_dict().keys() == {"weight"}
    tensors, values = found.own("worker-1")
    assert tensors["own/random"].tolist() == [1]
    assert values == {"rank": 1}
    assert found.own("worker-7") == ({}, {})


def test_the_latest_are_kept(tmp_path: Path) -> None:
    for number in range(1, 6):
        store(tmp_path, 64 * number, float(number), keep=2)
    kept = [int(path.name) for path in generations(tmp_path / CHECKPOINTS)]
    assert kept == [320, 256]
    assert sorted(path.name for path in (tmp_path / CHECKPOINTS).iterdir()) == [
        "000000000256",
        "000000000320",
    ]


def test_ten_lines_read_it(tmp_path: Path) -> None:
    """As docs/checkpoints.md says: nothing of this library is needed."""
    store(tmp_path, 64, 1.0)
    folder = tmp_path / CHECKPOINTS / "000000000064"
    page = (Path(__file__).parents[2] / "docs" / "checkpoints.md").read_text(encoding="utf-8")
    code = page.split("```python\n")[1].split("```")[0]
    names: dict[str, object] = {"FOLDER": str(folder)}
    exec(code, names)  # noqa: S102 - the page's own lines
    read = names["state_dict"]
    assert isinstance(read, dict)
    assert read["weight"].equal(Checkpoint(folder).tensor("model/weight"))


def test_every_flipped_bit_and_every_truncation_is_found(tmp_path: Path) -> None:
    store(tmp_path, 64, 1.0)
    store(tmp_path, 128, 2.0)
    good = tmp_path / CHECKPOINTS / "000000000128"
    before = latest(tmp_path).tensor("model/weight")
    kept = {path.name: path.read_bytes() for path in good.iterdir()}
    rng = random.Random(0)  # noqa: S311 - repeatable
    for _ in range(1000):
        name = rng.choice(sorted(kept))
        content = bytearray(kept[name])
        if rng.random() < 0.5:
            del content[rng.randrange(len(content)) :]
        else:
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        (good / name).write_bytes(content)
        taken = latest(tmp_path)
        assert taken.samples == 64, (name, len(content))
        assert taken.skipped
        (good / name).write_bytes(kept[name])
    assert latest(tmp_path).tensor("model/weight").equal(before)


def test_a_missing_file_and_a_missing_manifest(tmp_path: Path) -> None:
    store(tmp_path, 64, 1.0)
    store(tmp_path, 128, 2.0)
    (tmp_path / CHECKPOINTS / "000000000128" / "worker-1.safetensors").unlink()
    assert latest(tmp_path).samples == 64
    (tmp_path / CHECKPOINTS / "000000000064" / "manifest.json").unlink()
    with pytest.raises(ValueError, match=r"no checkpoint of .* is whole"):
        latest(tmp_path)


def test_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no checkpoint: runs store them with"):
        latest(tmp_path)


def _die(run: Path, limit: int) -> None:
    """Store in a child whose files cannot be longer than `limit` bytes."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        code = 0
        try:
            store(run, 128, 2.0)
        except BaseException:  # noqa: BLE001 - a fork must never return into the test
            code = 1
        os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert status == 0


def test_a_write_that_is_cut_short_leaves_the_generation_before(tmp_path: Path) -> None:
    store(tmp_path, 64, 1.0)
    sizes = [path.stat().st_size for path in (tmp_path / CHECKPOINTS / "000000000064").iterdir()]
    for limit in {1, 7, 8, 9, 100, *(size + by for size in sizes for by in (-1, 0))}:
        _die(tmp_path, limit)
        taken = latest(tmp_path)
        if taken.samples == 128:
            assert limit >= max(sizes)
            shutil.rmtree(taken.folder)
            taken = latest(tmp_path)
        assert taken.samples == 64
        assert taken.skipped == []
        whole = torch.cat([torch.full((2, 3), 1.0), torch.full((2, 3), 2.0)])
        assert taken.tensor("model/weight").equal(whole)
        sweep(tmp_path / CHECKPOINTS)
    left = {path.name for path in (tmp_path / CHECKPOINTS).iterdir()}
    assert left == {"000000000064"}


def test_a_process_that_is_killed_leaves_the_generation_before(tmp_path: Path) -> None:
    store(tmp_path, 64, 1.0)
    # The other worker's part never comes: what the first one waits in is what a kill leaves.
    pid = os.fork()
    if pid == 0:
        members = ("worker-0", "worker-1")
        folder = CheckpointFolder(tmp_path / CHECKPOINTS, "worker-0", members, 3, "b")
        folder.store(place(128), state(2.0))
        (tmp_path / "begun").touch()
        signal.pause()
    while not (tmp_path / "begun").exists():
        pass
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert latest(tmp_path).samples == 64
    store(tmp_path, 128, 3.0)
    assert latest(tmp_path).tensor("model/weight")[0, 0] == 3.0
    sweep(tmp_path / CHECKPOINTS)
    assert len([*(tmp_path / CHECKPOINTS).iterdir()]) == 2


def forge(path: Path, text: str) -> None:
    """Write a manifest as somebody would who knows the format."""
    path.write_text(text, encoding="utf-8")
    (path.parent / "manifest.sha256").write_bytes(sum_line(text.encode()))


def test_names_of_files_cannot_leave_the_folder(tmp_path: Path) -> None:
    store(tmp_path, 64, 1.0)
    path = tmp_path / CHECKPOINTS / "000000000064" / "manifest.json"
    text = path.read_text(encoding="utf-8").replace("worker-0.safetensors", "../x.safetensors")
    forge(path, text)
    with pytest.raises(DamagedCheckpoint, match="files that it does not list"):
        Checkpoint(path.parent)
    huge = json.loads(text.replace("../x", "worker-0"))
    huge["tensors"]["model/weight"]["shape"] = [1 << 40, 3]
    forge(path, json.dumps(huge))
    with pytest.raises(DamagedCheckpoint, match="larger than all files"):
        Checkpoint(path.parent)
