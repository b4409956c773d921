"""The script of live runs of `benchmarks.streaming`; its argument: when the last worker is gone."""

import json
import sys
import time

import torch
from torch import nn

from benchmarks import streaming

_given = [text for text in sys.argv[1:] if text.startswith("{")]
absence = streaming.Absence(**json.loads(_given[0])) if _given else None
# Every process of a run executes this file; a worker's own last argument is its rank.
_is_last = sys.orig_argv[-1] == str(streaming.WORKERS - 1)
_begun: list[float] = []
_gone: list[float] = []


def sleeping(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A loss that takes its time, and once very long on the last worker."""
    now = time.monotonic()
    _begun.append(now) if not _begun else None
    if absence is not None and _is_last and not _gone and now - _begun[0] >= absence.at:
        _gone.append(now)
        time.sleep(absence.gone)
    time.sleep(streaming.SECONDS)
    return nn.functional.mse_loss(outputs, targets)


job = streaming.job(sleeping, None if absence is None else absence.seconds)
