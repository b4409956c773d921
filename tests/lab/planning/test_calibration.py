"""Calibrations: seconds of a batch by its size, and files of them."""

import json
import os
import sys
from pathlib import Path

import pytest

from manyhands.lab.calibration import Calibration, ComputeTime, read_calibration

SCRIPT = """
    import time
    import torch, torch.nn.functional as F
    import manyhands as mh

    def loss(outputs, targets):
        if torch.is_grad_enabled():
            time.sleep(0.002 * len(targets))
        return F.cross_entropy(outputs, targets)

    inputs = torch.randn(400, 6, generator=torch.Generator().manual_seed(0))
    job = mh.Job(
        model=lambda: torch.nn.Linear(6, 4),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=loss,
        data=torch.utils.data.TensorDataset(inputs, torch.arange(400) % 4),
        validation=torch.utils.data.TensorDataset(inputs, torch.arange(400) % 4),
        global_batch=32,
        epochs=100,
    )

    if __name__ == "__main__":
        found = mh.calibrate(job, sizes=[8, 24], seconds=1.0, output="found.json")
        plan = mh.plan(job, "2 hosts of 1 worker, 1gbit", found)
        print(plan.verdict)
"""


def calibration(*points: tuple[int, float]) -> Calibration:
    compute = tuple(
        ComputeTime(samples=samples, seconds=seconds, cv=0.0, data=0.0, steps=9)
        for samples, seconds in points
    )
    return Calibration(date="", job="job", parameters=100, compute=compute)


def test_seconds_are_those_of_lines_through_the_points() -> None:
    found = calibration((8, 0.1), (16, 0.15), (32, 0.35))
    for samples, seconds in ((8, 0.1), (12, 0.125), (16, 0.15), (24, 0.25), (32, 0.35), (48, 0.55)):
        assert found.seconds(samples) == pytest.approx(seconds)
    assert found.seconds(4) == pytest.approx(0.075)
    assert found.times(16) == "constant(0.15)"


def test_noise_never_gives_a_negative_time_or_one_that_falls() -> None:
    found = calibration((8, 0.1), (16, 0.09), (32, 0.5))
    known = [found.seconds(samples) for samples in (1, 2, 8, 16, 32, 64)]
    assert known == sorted(known)
    assert known[0] > 0


def test_one_point_is_in_proportion() -> None:
    assert calibration((10, 0.2)).seconds(5) == pytest.approx(0.1)


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    found = calibration((8, 0.1), (16, 0.15))
    assert read_calibration(found.write(tmp_path / "sub" / "c.json")) == found
    (tmp_path / "no.json").write_text('{"compute": 3}')
    with pytest.raises(ValueError, match=r"no\.json is no calibration"):
        read_calibration(tmp_path / "no.json")


@pytest.mark.slow
@pytest.mark.timed
def test_a_job_is_measured_by_real_runs(run_script) -> None:
    started = run_script(SCRIPT)
    assert started.finish(170) == 0, started.text()
    found = read_calibration(started.folder / "found.json")
    small, large = found.compute
    assert (small.samples, large.samples) == (8, 24)
    assert 0.016 < small.seconds < 0.030
    assert 0.048 < large.seconds < 0.070
    assert found.parameters == 28 * 4
    assert 1.0 <= found.sharing < 1.3
    assert found.served is not None
    assert 0 <= found.served <= found.exchange
    assert "2 workers" in started.text()


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_a_machine_that_is_busy_is_measured_and_said_to_be_busy(start, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("\n".join(line[4:] for line in SCRIPT.splitlines()))
    command = (sys.executable, "-m", "manyhands")
    spin = "while True: pass"
    busy = [start(sys.executable, "-c", spin) for _ in range(2 * (os.cpu_count() or 1))]
    started = start(*command, "calibrate", "job.py", "--seconds", "1")
    assert started.finish(840) == 0, started.text()
    found = read_calibration(started.folder / "calibration.json")
    assert found.compute
    assert found.slowdown > 1.5
    assert "other programs computed while it was measured" in started.text()
    for one in busy:
        one.process.kill()
    options = ("--calibration", "calibration.json", "--cluster", "4 hosts of 1 worker, 1gbit")
    started = start(*command, "plan", "job.py", *options, "--strategy", "allreduce()", "--json")
    assert started.finish(100) == 0, started.text()
    plan = json.loads(started.text())
    assert any("other programs computed" in words for words in plan["cautions"])
    for one in plan["ranking"]:
        assert one["most"] >= found.slowdown * one["rate"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_commands_measure_and_rank(start, run_script, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("\n".join(line[4:] for line in SCRIPT.splitlines()))
    command = (sys.executable, "-m", "manyhands")
    started = start(*command, "calibrate", "job.py", "--seconds", "0.5")
    assert started.finish(170) == 0, started.text()
    assert "stored in calibration.json" in started.text()
    options = ("--calibration", "calibration.json", "--cluster", "4 hosts of 1 worker, 1gbit")
    started = start(*command, "plan", "job.py", *options)
    assert started.finish(100) == 0, started.text()
    assert "manyhands train job.py --strategy" in started.text()
