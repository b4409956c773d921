"""The script of a paced run: `python -m benchmarks.paced_job JSON`, as `benchmarks.paced` has it."""

import json
import sys
import time
from pathlib import Path

import torch
from torch import nn

import manyhands as mh
from benchmarks import paced

given = json.loads(sys.argv[1])
pace = paced.Pace(**given["pace"])
# A worker's last argument is its rank.
number = sys.orig_argv[-1]
draw = pace.drawer(int(number) if number.isdigit() else 0)


def sleeping(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A loss that takes long."""
    time.sleep(draw())
    return nn.functional.mse_loss(outputs, targets)


job = paced.job(pace, sleeping)

if __name__ == "__main__":
    run = mh.train(job, given["strategy"], workers=pace.workers, output=Path(given["folder"]))
    print(run.summary())
