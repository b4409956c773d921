"""Virtual comparisons in several processes: the same results as in one."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
import torch
from test_compare_virtual import a_job

import manyhands as mh
from manyhands.lab.compare import Compared
from manyhands.lab.conduct import runs_at_once
from manyhands.lab.design import Design
from manyhands.lab.entrants import read_entrants
from manyhands.live.processes.forked_call import ForkedCall, end, wait

EIGHT = (
    "synchronous, asynchronous, ssp(staleness=2), softsync(wait_for=2), averaging(every=2), "
    "easgd, gossip, hierarchical(outer=averaging(every=1), islands=2)"
)


def compared(
    output: Path, strategies: str = EIGHT, job: mh.Job | None = None, **settings
) -> Compared:
    settings = {"workers": 4, "repeats": 1, "bandwidth": "10mbit"} | settings
    return mh.compare(job or a_job(), strategies, virtual=True, output=output, **settings)


def files(folder: Path) -> dict[str, bytes]:
    """All files of the runs, by path."""
    found = (path for path in folder.glob("runs/**/*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def results(folder: Path) -> dict[str, object]:
    """The content of `results.json`, without the times at which it was made."""
    read = msgspec.json.decode((folder / "results.json").read_bytes())
    for one in (read, *read["runs"]):
        for name in ("created", "started", "ended"):
            one.pop(name, None)
    return read


def test_the_results_are_the_same_to_the_bit_in_one_process_and_in_two(tmp_path: Path) -> None:
    one = compared(tmp_path / "one", processes=1)
    two = compared(tmp_path / "two", processes=2)
    assert results(tmp_path / "one") == results(tmp_path / "two")
    assert files(tmp_path / "one") == files(tmp_path / "two")
    assert len(files(tmp_path / "two")) > 8 * 2
    assert [run.strategy for run in one.results.runs] == [run.strategy for run in two.results.runs]
    assert {run.status for run in two.results.runs} == {"finished"}


def test_a_run_whose_process_dies_is_a_failed_run_that_says_so(tmp_path: Path) -> None:
    here, halves = os.getpid(), 0

    def deadly(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        nonlocal halves
        halves += len(targets) == 8
        # Before a run, the loss is tried on a batch, and on its halves.
        if halves > 10 and os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        if len(targets) == 2:
            raise RuntimeError("two are too few")
        return torch.nn.functional.cross_entropy(outputs, targets)

    made = compared(
        tmp_path, "asynchronous", a_job(deadly), workers=(2, 4, 8), processes=2, bandwidth=None
    )
    assert [(run.workers, run.status, run.words) for run in made.results.runs] == [
        (2, "failed", "its process ended by SIGKILL"),
        (4, "finished", ""),
        (8, "failed", "RuntimeError: two are too few"),
    ]


def test_more_processes_than_one_are_for_virtual_runs(tmp_path: Path) -> None:
    live = Design(entrants=read_entrants("asynchronous"), workers=(2,))
    assert runs_at_once(live, None) == 1
    with pytest.raises(ValueError, match="live runs are measured"):
        runs_at_once(live, 2)
    with pytest.raises(ValueError, match="processes must be at least 1, got 0"):
        compared(tmp_path / "b", processes=0)
    assert not list(tmp_path.iterdir())


SCRIPT = """
import pathlib, time, torch
import manyhands as mh

WAITS = pathlib.Path(__file__).with_name("waits")
inputs = torch.randn(256, 4, generator=torch.Generator().manual_seed(1))

def loss(outputs, targets):
    while len(targets) == 4 and WAITS.exists():
        time.sleep(0.05)
    return torch.nn.functional.cross_entropy(outputs, targets)

job = mh.Job(
    model=lambda: torch.nn.Linear(4, 2),
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    loss=loss,
    data=torch.utils.data.TensorDataset(inputs, (inputs.sum(1) > 0).long()),
    global_batch=16,
    epochs=1,
)
"""


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [int(word) for word in text.split()]


@pytest.mark.slow
def test_an_interruption_ends_all_processes_and_what_was_made_is_kept(tmp_path: Path) -> None:
    script, out, waits = tmp_path / "script.py", tmp_path / "out", tmp_path / "waits"
    script.write_text(SCRIPT, encoding="utf-8")
    waits.touch()
    command = [sys.executable, "-m", "manyhands", "compare", str(script), "--virtual"]
    command += ["--strategies", "asynchronous, synchronous", "--workers", "2,4", "--repeats", "1"]
    command += ["--processes", "2", "--output", str(out)]
    first = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        # Tests that run in the background ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    try:
        until = time.monotonic() + 60
        while len(list(out.glob("runs/*-4/trace"))) < 2 or len(children(first.pid)) != 2:
            assert time.monotonic() < until
            assert first.poll() is None
            time.sleep(0.05)
        running = children(first.pid)
        first.send_signal(signal.SIGINT)
        said = first.communicate(timeout=60)[1]
    finally:
        first.kill()
        first.wait()
        if first.stderr is not None:
            first.stderr.close()
    assert first.returncode == 130
    assert "interrupted; all processes are ended" in said
    assert not any(Path(f"/proc/{pid}").exists() for pid in running)
    kept = {path: path.read_bytes() for path in out.glob("runs/*-2/**/*") if path.is_file()}
    assert len({path.relative_to(out).parts[1] for path in kept}) == 2
    waits.unlink()
    again = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=True, timeout=60)
    assert "2 of 4 runs were made before" in again.stderr
    assert all(path.read_bytes() == content for path, content in kept.items())
    made = msgspec.json.decode((out / "results.json").read_bytes())
    assert [(run["workers"], run["status"]) for run in made["runs"]] == [
        (2, "finished"),
        (2, "finished"),
        (4, "finished"),
        (4, "finished"),
    ]


def test_a_forked_call_sends_texts_and_its_result() -> None:
    here = os.getpid()

    def work(send) -> str:
        send("half\nway")
        return f"{os.getpid() != here}"

    call, texts = ForkedCall(work), []
    while not call.is_over:
        for ready in wait([call], 10):
            texts += ready.read()
    assert (texts, call.result, call.ending) == (["half\nway"], "True", "exited with code 0")


def test_a_forked_call_can_be_ended() -> None:
    def work(send) -> str:
        send("begun")
        time.sleep(60)
        return ""

    call = ForkedCall(work)
    assert call.read() == ["begun"]
    end([call])
    assert (call.result, call.ending) == (None, "exited with code 143")
