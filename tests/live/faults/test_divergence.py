"""A run that diverges fails, and says where."""

import sys

import pytest

SCRIPT = """
import os, torch, torch.nn.functional as F
import manyhands as mh

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        made = torch.Generator().manual_seed(index)
        values = torch.randn(4, generator=made)
        broken = int(os.environ.get("BROKEN", "-1"))
        return values * (float("nan") if index == broken else 1.0), int(values.sum() > 0)

RATE = float(os.environ.get("RATE", "0.1"))

job = mh.Job(
    model=lambda: torch.nn.Linear(4, 2),
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=RATE),
    loss=F.cross_entropy, data=Rows(), global_batch=8, epochs=4, metrics=(),
    stop_on_nan=os.environ.get("GOES_ON") is None,
)
"""


def train(start, tmp_path, strategy, **environment):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = (sys.executable, "-m", "manyhands", "train", "script.py", "--output", "out")
    return start(*command, "--strategy", strategy, "--workers", "2", **environment)


@pytest.mark.parametrize("strategy", ["allreduce()", "asynchronous()"])
def test_a_sample_that_is_not_a_number_ends_the_run_and_is_named(start, tmp_path, strategy) -> None:
    run = train(start, tmp_path, strategy, BROKEN="20")
    assert run.finish() == 1, run.text()
    first = next(line for line in run.text().splitlines() if line.startswith("manyhands"))
    assert first.startswith("manyhands: diverged: the training loss became NaN at sample "), first
    assert "on worker" in first
    assert "whose parameters" not in first, "the worker that had the sample is named"
    assert "Traceback" not in run.text()


@pytest.mark.parametrize(
    "strategy", ["synchronous()", pytest.param("allreduce()", marks=pytest.mark.slow)]
)
def test_a_run_that_goes_on_leaves_the_sample_out(start, tmp_path, strategy) -> None:
    run = train(start, tmp_path, strategy, BROKEN="20", GOES_ON="1")
    assert run.finish() == 0, run.text()
    lost = 16 if strategy == "synchronous()" else 32
    assert f"{256 - lost} seen, 0 repeated, {lost} lost" in run.text()
    assert " had NaN and " in run.text()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["synchronous()", "allreduce()"])
def test_a_run_whose_losses_are_all_not_finite_has_failed(start, tmp_path, strategy) -> None:
    run = train(start, tmp_path, strategy, RATE="1e38", GOES_ON="1")
    assert run.finish() == 1, run.text()
    assert "1 host: failed: diverged: the " in run.text().replace("\n  ", " ")
