"""torchrun's processes are workers: the same script, the same parameters to the bit."""

import sys
import textwrap

from manyhands.reports import Run
from support import ROOT

EXAMPLE = ROOT / "examples" / "mnist.py"


def test_torchrun_and_manyhands_train_give_the_same_parameters(start, tmp_path):
    ours = start(
        *(sys.executable, "-m", "manyhands", "train", EXAMPLE),
        *("--workers", "2", "--samples", "2000", "--output", "ours"),
    )
    assert ours.finish(150) == 0, ours.text()
    short = tmp_path / "short.py"
    text = EXAMPLE.read_text(encoding="utf-8")
    assert "epochs=1," in text
    short.write_text(text.replace("epochs=1,", "samples=2000,"), encoding="utf-8")
    theirs = start(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", short)
    assert theirs.finish(150) == 0, theirs.text()
    (folder,) = (tmp_path / "runs").iterdir()
    assert Run(folder).status == "finished"
    assert Run(folder).samples == 2000
    assert Run(folder).parameters_digest == Run(tmp_path / "ours").parameters_digest
    assert Run(folder).parameters_digest is not None
    assert theirs.text().count("parameters ") == 1, "one summary for all processes"
    assert "torchrun: workers 2" in theirs.text()


ENDING = """
    from pathlib import Path

    import torch
    import manyhands as mh

    def threads():
        return [one.read_text().strip() for one in Path("/proc/self/task").glob("*/comm")]

    during = []
    def loss(outputs, targets):
        during.extend(threads())
        return torch.nn.functional.mse_loss(outputs, targets)

    job = mh.Job(
        model=lambda: torch.nn.Linear(4, 4),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=loss,
        data=torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 4)),
        global_batch=16,
        epochs=1,
        metrics=(),
    )
    mh.train(job, "allreduce()")
    print("GLOO", any("gloo" in one for one in during), [one for one in threads() if "gloo" in one])
"""


def test_no_thread_of_gloo_is_left_that_a_script_could_end_under(start, tmp_path):
    """One that drops a tensor while the interpreter ends aborts the process."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(ENDING), encoding="utf-8")
    started = start(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", script)
    assert started.finish(150) == 0, started.text()
    assert started.text().count("GLOO True []") == 2, started.text()
