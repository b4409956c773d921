"""A terminal that cannot be written to never costs the trained model."""

import sys
import textwrap

import pytest

from manyhands.reports import Run

SCRIPT = """
    import time
    import torch
    import torch.nn.functional as F
    import manyhands as mh

    def loss(outputs, targets):
        time.sleep(0.01)
        print("a line of a worker", flush=True)
        return F.cross_entropy(outputs, targets)

    job = mh.Job(
        model=lambda: torch.nn.Linear(4, 2),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=loss,
        data=torch.utils.data.TensorDataset(torch.ones(256, 4), torch.zeros(256).long()),
        global_batch=16,
        epochs=1,
    )
    if __name__ == "__main__":
        print(mh.train(job, workers=2, output="run").summary())
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("how", "reader"),
    [
        ("-m manyhands train {} --workers 2 --output run", "| head -1"),
        pytest.param("{}", "> /dev/full 2>&1", marks=pytest.mark.slow),
        pytest.param(
            "-m manyhands train {} --workers 2 --output run",
            "> /dev/full 2>&1",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_run_whose_terminal_cannot_be_written_to_is_finished(start, tmp_path, how, reader):
    script = tmp_path / "job.py"
    script.write_text(textwrap.dedent(SCRIPT), encoding="utf-8")
    command = f"exec 2>&1; {sys.executable} {how.format(script)} {reader}"
    started = start("bash", "-c", f"set -o pipefail; ({command}); echo code $? > code")
    started.finish(100)
    assert (tmp_path / "code").read_text("utf-8").strip() == "code 0", started.text()
    done = Run(tmp_path / "run")
    assert (done.status, done.samples) == ("finished", 256)
    assert (tmp_path / "run" / "model.safetensors").stat().st_size > 0
