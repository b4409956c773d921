"""The script of a paced run, as `benchmarks.paced` starts it; its argument is the pace."""

import json
import sys
import time

import torch
from torch import nn

from benchmarks import paced

pace = paced.Pace(**json.loads(sys.argv[1]))
# Every process of a run executes this file; a worker's own last argument is its rank.
_last = sys.orig_argv[-1]
draw = pace.drawer(int(_last) if _last.isdigit() else 0)


def sleeping(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A loss that takes its time."""
    time.sleep(draw())
    return nn.functional.mse_loss(outputs, targets)


job = paced.job(pace, sleeping)
