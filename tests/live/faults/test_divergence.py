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

job = mh.Job(
    model=lambda: torch.nn.Linear(4, 2),
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
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


def test_a_run_that_goes_on_says_so_in_its_first_line_and_exit_code(start, tmp_path) -> None:
    run = train(start, tmp_path, "synchronous()", BROKEN="20", GOES_ON="1")
    assert run.finish() == 1, run.text()
    assert "1 host: failed: diverged: the training loss became NaN at" in run.text().replace(
        "\n  ", " "
    )
    assert "256 seen" in run.text()
