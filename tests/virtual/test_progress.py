"""What takes longer than two seconds says how far it is."""

import io
import sys
import time

import pytest
import torch
from virtual_jobs import a_job

from manyhands.verbs import progress
from manyhands.verbs.asked import Asked
from manyhands.verbs.progress import shown
from manyhands.verbs.simulate import plan
from support import wait_for


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_is_over_soon_shows_nothing() -> None:
    stream = Terminal()
    with shown(lambda: "half", stream=stream):
        pass
    assert stream.getvalue() == ""


@pytest.mark.parametrize("kind", [Terminal, io.StringIO])
def test_what_takes_long_shows_a_line(kind, monkeypatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.02)
    stream = kind()
    with shown(lambda: "half of it", stream=stream):
        wait_for(lambda: "half of it · 0 s so far" in stream.getvalue(), 5, "a line")
    assert stream.getvalue().endswith("\r" if kind is Terminal else "\n")


def test_a_simulation_tells_its_samples_and_virtual_time(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.01)
    monkeypatch.setattr(progress, "_TERMINAL_EVERY", 0.01)

    def slow(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        time.sleep(0.005)
        return torch.nn.functional.mse_loss(outputs, targets)

    told: list[str] = []
    asked = Asked(workers=4, output=tmp_path / "out")
    plan(a_job(loss=slow), asked, "script").carry_out(told.append)
    assert any(" of 400 samples (" in line and "s of virtual time" in line for line in told)


SCRIPT = """
import time, torch, torch.nn.functional as F
import manyhands as mh

class Slow(torch.nn.Linear):
    def forward(self, inputs):
        time.sleep(1.5)
        return super().forward(inputs)

job = mh.Job(
    model=lambda: torch.nn.Sequential(Slow(4, 4), Slow(4, 2)),
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    loss=F.cross_entropy,
    data=torch.utils.data.TensorDataset(torch.randn(32, 4), torch.zeros(32, dtype=torch.long)),
    global_batch=16, epochs=1, metrics=(),
)
"""


@pytest.mark.slow
def test_a_forecast_tells_which_worker_it_plays(start, tmp_path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    words = ("-m", "manyhands", "forecast", "script.py", "--strategy", "allreduce()")
    started = start(sys.executable, *words, "--workers", "2")
    assert started.finish() == 0, started.text()
    assert "dry run of worker 0 of 2: 0 of 1 done" in started.text()
