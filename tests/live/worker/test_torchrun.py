"""torchrun's processes are workers: the same script, the same parameters to the bit."""

import sys

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
