"""A disk that is full for a while costs time, and no run."""

import contextlib
import errno
import re
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest
import torch

from manyhands.files import disk_space
from manyhands.files.checkpoint import load_state, save_model
from manyhands.files.disk_space import Rescued, stored_patiently
from manyhands.live.member.trace_files import TraceFiles
from manyhands.reports import Run
from support import wait_for

SCRIPT = """
    import time
    import torch, torch.nn.functional as F
    import manyhands as mh

    def loss(outputs, targets):
        time.sleep(0.03)
        print("a line in the log of every worker " * 8)
        return F.cross_entropy(outputs, targets)

    torch.manual_seed(0)
    job = mh.Job(
        model=lambda: torch.nn.Linear(4, 2),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=loss,
        data=torch.utils.data.TensorDataset(torch.randn(2400, 4), torch.randint(0, 2, (2400,))),
        global_batch=12,
        epochs=1,
        metrics=(),
    )

    if __name__ == "__main__":
        mh.train(job, "allreduce()", workers=2, output="disk/run")
"""


@pytest.fixture
def disk(tmp_path: Path):
    """A file system of 4 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    done = subprocess.run(mounting, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Take all the space there is; the file that has it."""
    filler = disk / "filler"
    with filler.open("ab", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    return filler


@pytest.mark.slow
def test_a_disk_that_is_full_for_three_seconds_does_not_end_a_run(run_script, disk):
    started = run_script(SCRIPT)
    trace = disk / "run" / "trace" / "worker-0.jsonl"
    wait_for(lambda: trace.exists() and b'"compute"' in trace.read_bytes(), 60, "training")
    filler = fill(disk)
    wait_for(lambda: "cannot be written: No space left" in started.text(), 20, "the words")
    threading.Event().wait(3.0)
    filler.unlink()
    wait_for(lambda: "trace: written again" in started.text(), 20, "the words")
    assert started.finish(90) == 0, started.text()
    assert "nothing is missing" in started.text()
    run = Run(disk / "run")
    assert run.status == "finished"
    assert run.samples == 2400
    assert (disk / "run" / "model.safetensors").exists()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["allreduce()", "synchronous()"])
def test_what_a_full_disk_left_out_is_in_the_summary_and_nothing_stays(run_script, disk, strategy):
    text = SCRIPT.replace("allreduce()", strategy).replace(
        "metrics=(),", "metrics=(), checkpoint=mh.every(steps=10),"
    )
    started = run_script(
        text.replace("mh.train(", "run = mh.train(") + "        print(run.summary())"
    )
    trace, stored = disk / "run" / "trace" / "worker-0.jsonl", disk / "run" / "checkpoints"
    wait_for(lambda: trace.exists() and b'"compute"' in trace.read_bytes(), 60, "training")
    filler = fill(disk)
    threading.Event().wait(3.0)
    filler.unlink()
    assert started.finish(120) == 0, started.text()
    summary = " ".join(started.text().split())
    told = re.search(r"not stored (\d+) checkpoints?, the first after (\d+) samples, ", summary)
    assert told, started.text()
    assert int(told[2]) % 120 == 0
    assert "the disk is full" in summary
    assert re.search(r"traces could not be written from [\d.]+ s to [\d.]+ s, and noth", summary)
    left = [path.name for path in stored.iterdir()]
    assert all(name.isdigit() for name in left), left
    assert f"{2400:012}" in left


def test_a_file_waits_for_space(disk):
    filler, said = fill(disk), []
    freeing = threading.Timer(1.0, filler.unlink)
    freeing.start()
    with stored_patiently(disk / "model", 30.0, said.append) as file:
        for _ in range(8):
            file.write(b"12345678" * 8192)
    freeing.join()
    assert (disk / "model").read_bytes() == b"12345678" * 65536
    assert "Free some space" in said[0]
    assert "writing continues" in said[1]


def test_a_file_that_finds_no_space_fails_in_words_and_leaves_nothing(disk):
    fill(disk)
    with (
        pytest.raises(OSError, match="free space on that disk or choose another folder") as raised,
        stored_patiently(disk / "model", 1.0, lambda _: None) as file,
    ):
        file.write(bytes(1 << 20))
    assert raised.value.errno == errno.ENOSPC
    assert not (disk / "model").exists()


def test_a_model_that_finds_no_space_is_complete_in_another_place(disk, tmp_path, monkeypatch):
    model = torch.nn.Linear(1000, 1000)
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(other))
    monkeypatch.setattr(disk_space.stored_patiently.__wrapped__, "__defaults__", (1.0, str))
    (disk / "filler").write_bytes(bytes(2 << 20))
    with pytest.raises(Rescued, match=r"No space left on device for 1 s\. The trained model is in"):
        save_model(model, disk / "model.safetensors")
    (kept,) = other.glob("rescued-*/model.safetensors")
    assert torch.equal(load_state(kept)["weight"], model.weight)
    assert [one.name for one in disk.iterdir()] == ["filler"]


def test_a_model_whose_folder_was_deleted_is_written(tmp_path):
    save_model(torch.nn.Linear(2, 2), tmp_path / "deleted" / "run" / "model.safetensors")
    assert (tmp_path / "deleted" / "run" / "model.safetensors").exists()


def test_a_trace_whose_folder_was_deleted_begins_with_its_head_again(tmp_path):
    said: list[str] = []
    path = tmp_path / "trace" / "worker-0.jsonl"
    files = TraceFiles(said.append)
    files.append(path, b"the head\nthe first line\n")
    shutil.rmtree(path.parent)
    files.append(path, b"the second line\n")
    assert path.read_bytes() == b"the head\nthe second line\n"
    assert said == []


def test_traces_beyond_the_limit_are_left_out_and_counted(disk):
    said: list[str] = []
    now = [0.0]
    files = TraceFiles(said.append, lambda: now[0], kept=5000)
    path = disk / "worker-0.jsonl"
    files.append(path, b"the first line\n")
    filler = fill(disk)
    # There is no page left for a line that does not fit into the first one.
    for number in range(4):
        files.append(path, f"{number}".encode() * 1999 + b"\n" * 3000)
    assert said[0].startswith("trace: worker-0.jsonl cannot be written: No space left on device")
    filler.unlink()
    now[0] = 3.0
    files.append(path, b"the last line\n")
    assert said[1] == "trace: written again after 3 s; 14,997 bytes of 1 files are missing"
    lines = path.read_bytes().split(b"\n")
    assert lines[0] == b"the first line"
    assert lines[1] == b"0" * 1999
    assert lines[-2] == b"the last line"
    assert not any(set(line) & set(b"123") and line != b"the last line" for line in lines[2:-2])
