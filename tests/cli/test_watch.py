"""`manyhands watch`: a real run while it goes on, a finished one, and one of many workers."""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import manyhands as mh
from manyhands.cli.app import app
from manyhands.reports.figures.progress import RunProgress
from manyhands.reports.render.watching import frame
from manyhands.trace import Following, Header, Recorder, Setting, trace_file
from support import Started, wait_for

SCRIPT = """
    import time
    import torch, torch.nn.functional as F
    import manyhands as mh

    def loss(outputs, targets):
        time.sleep(0.05)
        return F.cross_entropy(outputs, targets)

    job = mh.Job(
        model=lambda: torch.nn.Linear(4, 2),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=loss,
        data=torch.utils.data.TensorDataset(torch.randn(1200, 4), torch.zeros(1200).long()),
        global_batch=12,
        epochs=1,
        metrics=(),
    )

    if __name__ == "__main__":
        mh.train(job, "asynchronous()", workers=2, output="run")
"""
WORKERS = 64


@pytest.mark.timeout(180)
def test_a_run_is_followed_to_its_end(
    run_script: Callable[..., Started], start: Callable[..., Started]
) -> None:
    training = run_script(SCRIPT)
    folder = training.folder / "run"
    wait_for((folder / "trace" / "agent.jsonl").exists, 60, "the run begins")
    watching = start(sys.executable, "-m", "manyhands", "watch", "run")
    progress, trace = RunProgress(), Following(folder)

    def two_train() -> bool:
        progress.add(trace.records())
        return sum(one.state == "training" for one in progress.workers) == 2

    wait_for(two_train, 90, "two workers train")
    assert (progress.phase, progress.total) == ("training", 1200)
    victim = training.worker(1)
    assert victim is not None
    victim.kill()

    def lost_and_back() -> bool:
        progress.add(trace.records())
        return progress.lost == 1 and progress.members["worker-1"].restarts == 1

    wait_for(lost_and_back, 60, "worker 1 is lost and restarted")
    assert training.finish() == 0, training.text()
    assert watching.finish(30) == 0, watching.text()
    text = watching.text()
    assert re.search(r"^(training|evaluating): [\d,]+ of 1,200 samples", text, re.MULTILINE), text
    assert re.search(r"^[\d.]+ s: worker 1 .* was killed \(SIGKILL\)", text, re.MULTILINE), text
    assert "asynchronous() on 2 workers, 1 host: finished" in text
    progress.add(trace.records())
    assert (progress.phase, progress.samples, progress.restarts) == ("finished", 1200, 1)
    assert progress.sent > 0
    assert progress.staleness is not None
    run = mh.Run(folder)
    assert progress.rate == pytest.approx(run.samples / run.seconds, rel=0.02)
    shown = CliRunner().invoke(app, ["watch", str(folder), "--once"], env={"COLUMNS": "150"})
    assert shown.exit_code == 0
    assert "asynchronous() on 2 workers: finished" in shown.output
    assert "1,200 of 1,200 samples (100 %)" in shown.output
    assert "lost 1, restarted 1" in shown.output
    assert "workers: 2 trained, 1 server" in shown.output


def many(folder: Path) -> RunProgress:
    data = torch.utils.data.TensorDataset(torch.eye(2).repeat(320, 1), torch.arange(640) % 2)
    job = mh.Job(
        model=lambda: torch.nn.Linear(2, 2),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=torch.nn.functional.cross_entropy,
        data=data,
        global_batch=128,
        epochs=4,
    )
    faults = "crash(worker=7, at=0.02), crash(worker=9, at=0.02, restart=0.01)"
    options = {"times": "constant(0.01)", "slow": ["33:4x"], "faults": faults, "detection": "5ms"}
    mh.simulate(job, "ssp(staleness=4)", workers=WORKERS, output=folder, **options)
    progress = RunProgress()
    progress.add(Following(folder).records())
    return progress


def printed(progress: RunProgress, width: int, height: int | None) -> list[str]:
    console = Console(width=width, height=height or 1000, record=True, quiet=False, file=_Sink())
    console.print(frame(progress, width, height))
    return console.export_text().splitlines()


class _Sink:
    """A stream that keeps nothing."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        """Nothing is kept."""


def test_64_workers_fit_one_screen_with_lost_and_slow_ones_first(tmp_path: Path) -> None:
    progress = many(tmp_path / "run")
    assert len(progress.workers) == WORKERS
    assert progress.workers[0].name == "worker-7"
    assert progress.state(progress.workers[0]) == "lost"
    assert progress.workers[1].name == "worker-33"
    assert progress.members["worker-9"].restarts == 1
    assert (progress.samples, progress.total) == (2_560, 2_560)
    for width, height in ((110, 30), (80, 24)):
        lines = printed(progress, width, height)
        assert len(lines) < height
        assert max(map(len, lines)) <= width
        cells = " ".join(lines[4:-3])
        shown = {int(one) for one in re.findall(r"(?:^| )(\d+) (?:ended|lost) ", cells)}
        assert shown == set(range(WORKERS))
        assert lines[4].split()[:2] == ["7", "lost"]
    small = printed(progress, 60, 16)
    assert len(small) < 16
    assert any(re.match(r"and \d+ more, ", line) for line in small)
    assert small[4].split()[:2] == ["7", "lost"]
    whole = printed(progress, 150, None)
    assert sum(" ended " in line or " lost " in line for line in whole[5:]) == WORKERS


def recorded(folder: Path, name: str, rank: int, clock: list[float]) -> Recorder:
    header = Header(role=name, rank=rank, host="a", pid=0, boot="", clock=0.0, wall=1000.0)
    path = trace_file(folder, header)
    path.parent.mkdir(parents=True, exist_ok=True)

    def append(lines: bytes) -> None:
        with path.open("ab") as file:
            file.write(lines)

    return Recorder(header, append, lambda: clock[0])


def test_speed_is_that_of_late_and_a_silent_worker_is_named(tmp_path: Path) -> None:
    clock = [0.0]
    slow, fast = (recorded(tmp_path, "worker", rank, clock) for rank in (0, 1))
    agent = recorded(tmp_path, "agent", 0, clock)
    agent.setting("workers", 2, "default")
    agent.event("begin", {"samples": "10000"})
    agent.flush()
    trace, progress = Following(tmp_path), RunProgress()
    for second in range(40):
        clock[0] = float(second)
        for worker, speed in ((slow, 10), (fast, 100 if second < 20 else 50)):
            if worker is slow and second >= 30:
                continue
            worker.count(samples=speed, steps=1, sent={"server-0": 1000})
            worker.span("compute", float(second), 0.75, second)
            worker.span("wait", float(second) + 0.75, 0.25, second)
            worker.flush()
        progress.add(trace.records())
        if second == 19:
            assert progress.rate == pytest.approx(110, rel=0.02)
    assert progress.members["worker-1"].rate == pytest.approx(50, rel=0.02)
    assert progress.members["worker-1"].doing == "compute 75 %"
    assert progress.is_silent(progress.members["worker-0"])
    assert [one.name for one in progress.workers] == ["worker-0", "worker-1"]
    assert (progress.total, progress.sent) == (10_000, 70_000)
    lines = printed(progress, 100, 20)
    assert "on 2 workers: training" in lines[0]
    assert lines[3] == "workers: 1 silent, 1 training · lost 0, restarted 0"
    assert Setting("workers", "2", "default").value == progress.settings["workers"]


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["watch", str(tmp_path)])
    assert done.exit_code == 2
    assert "holds no run" in done.output


def test_a_run_whose_processes_are_gone_is_not_waited_for(tmp_path: Path) -> None:
    clock = [0.0]
    agent = recorded(tmp_path, "agent", 0, clock)
    agent.setting("strategy", "single()", "default")
    agent.flush()
    worker = recorded(tmp_path, "worker", 0, clock)
    worker.flush()
    for path in (tmp_path / "trace").iterdir():
        os.utime(path, (1, 1))
    done = CliRunner().invoke(app, ["watch", str(tmp_path)])
    assert done.exit_code == 1
    assert "single() on 1 worker, 1 host: did not end properly" in done.output
