"""Runs that are started together have a folder each."""

import sys

import pytest

from manyhands import Run

SCRIPT = """
import time
import torch, torch.nn.functional as F
import manyhands as mh

made = torch.Generator().manual_seed(0)
inputs = torch.randn(64, 4, generator=made)
targets = (inputs.sum(1) > 0).long()
job = mh.Job(
    model=lambda: torch.nn.Linear(4, 2),
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    loss=F.cross_entropy,
    data=torch.utils.data.TensorDataset(inputs, targets),
    global_batch=16,
    epochs=1,
    prepare=lambda: time.sleep(1.0),
)
if __name__ == "__main__":
    time.strftime = lambda *_: "20300101-000000"  # all runs begin in one second
    mh.train(job, "asynchronous()", workers=1)
"""


@pytest.mark.slow
def test_runs_of_one_second_have_a_folder_a_journal_and_a_model_each(start, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    runs = [start(sys.executable, "script.py") for _ in range(2)]
    for run in runs:
        assert run.finish() == 0, run.text()
    folders = sorted((tmp_path / "runs").iterdir())
    assert len(folders) == 2
    for folder in folders:
        assert (folder / "model.safetensors").is_file()
        agents = [p for p in Run(folder).trace.processes if p.header.role == "agent"]
        assert len(agents) == 1
