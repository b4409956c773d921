"""Checkpoints at a URL: whole or absent there too, and continued from."""

import shutil
from pathlib import Path

import pytest
import torch

pytest.importorskip("fsspec", reason="the library fsspec is not installed")

from manyhands.files.checkpoints import (
    CHECKPOINTS,
    CheckpointFolder,
    CheckpointPlace,
    DamagedCheckpoint,
    MemberState,
    TensorPart,
    generations,
)
from manyhands.files.checkpoints.manifest import MANIFEST_SUM
from manyhands.files.checkpoints.remote import RemoteCheckpoints, Uploads


def place(samples: int) -> CheckpointPlace:
    return CheckpointPlace(samples, samples // 8, "single()", 2, 1.0, {"seed": "0"}, {})


def state(value: float, rank: int = 0) -> MemberState:
    rows = torch.full((2, 3), value + rank)
    return MemberState([TensorPart("model/weight", rows, (4, 3), (2 * rank, 0))])


def stored(run: Path, url: str, samples: int, keep: int = 3) -> Path:
    """Store a generation, copied to a URL; its folder."""
    members = ("worker-0", "worker-1")
    about = (run / CHECKPOINTS, members, keep, "a", url)
    folders = [CheckpointFolder(about[0], one, *about[1:]) for one in members]
    for rank, folder in enumerate(folders):
        folder.store(place(samples), state(float(samples), rank))
    for folder in folders:
        folder.wait()
    return generations(run / CHECKPOINTS)[0]


def test_generations_are_copied_and_the_latest_is_fetched(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/there"
    for number in range(1, 5):
        local = stored(tmp_path / "run", url, 64 * number, keep=2)
    remote = RemoteCheckpoints(url)
    assert remote.generations() == ["000000000256", "000000000192"]
    assert sorted(path.name for path in (tmp_path / "there").iterdir()) == [
        "000000000192",
        "000000000256",
    ]
    found = remote.download(tmp_path / "cache")
    assert found is not None
    assert found.samples == 256
    for path in local.iterdir():
        assert (found.folder / path.name).read_bytes() == path.read_bytes()
    again = remote.download(tmp_path / "cache")
    assert again is not None
    assert again.folder == found.folder


def test_a_generation_without_its_last_file_is_none(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/there"
    stored(tmp_path / "run", url, 64)
    stored(tmp_path / "run", url, 128)
    (tmp_path / "there" / "000000000128" / MANIFEST_SUM).unlink()
    assert RemoteCheckpoints(url).generations() == ["000000000064"]
    shutil.rmtree(tmp_path / "there")
    assert RemoteCheckpoints(url).download(tmp_path / "cache") is None


def test_a_damaged_generation_is_passed_over(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/there"
    stored(tmp_path / "run", url, 64)
    stored(tmp_path / "run", url, 128)
    tensors = tmp_path / "there" / "000000000128" / "worker-0.safetensors"
    content = bytearray(tensors.read_bytes())
    content[-1] ^= 1
    tensors.write_bytes(content)
    found = RemoteCheckpoints(url).download(tmp_path / "cache")
    assert found is not None
    assert found.samples == 64
    assert "000000000128" in found.skipped[0]
    shutil.rmtree(tmp_path / "there" / "000000000064")
    with pytest.raises(DamagedCheckpoint, match="SHA-256"):
        RemoteCheckpoints(url).download(tmp_path / "cache")


def test_a_copy_of_another_attempt_is_not_taken_for_this_one(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/there"
    stored(tmp_path / "run", url, 64)
    RemoteCheckpoints(url).download(tmp_path / "cache")
    members = ("worker-0",)
    folder = CheckpointFolder(tmp_path / "other" / CHECKPOINTS, "worker-0", members, 3, "b", url)
    folder.store(place(64), state(5.0))
    folder.wait()
    found = RemoteCheckpoints(url).download(tmp_path / "cache")
    assert found is not None
    assert found.manifest.files.keys() == {"worker-0.safetensors"}


def test_an_upload_that_fails_is_reported_and_the_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    said: list[str] = []
    local = stored(tmp_path / "run", "", 64)
    uploads = Uploads(f"file://{tmp_path}/file/there", 3, said.append)
    uploads.add(local)
    uploads.finish()
    assert len(said) == 1
    assert said[0].startswith("warning: the checkpoint 000000000064 was not copied to file://")
    assert not uploads.needs(local)


def test_an_unknown_kind_of_url_is_refused() -> None:
    with pytest.raises(ValueError, match="nowhere"):
        RemoteCheckpoints("nowhere://bucket/run")
