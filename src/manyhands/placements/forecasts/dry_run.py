"""A placement carried out by one process that plays one worker of many.

Nothing is sent and nothing is computed: tensors have shapes and no content. What the engine asks
its groups for, and the memory that it holds, are those of the real thing.
"""

from __future__ import annotations

import time
import warnings
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from manyhands.costs import Collective
from manyhands.engine.fake_tensors import Ledger, imagining
from manyhands.placements.model.sample_batch import example
from manyhands.transport.fake_group import FakeGroup
from manyhands.transport.waits import Noted, Waits

if TYPE_CHECKING:
    from typing import Any

    from manyhands.job import Job
    from manyhands.placements.placement import Placement

_STEPS = 3
"""Some memory is made in the first step, and some of it is only then in the way of the second."""


@dataclass(frozen=True)
class DryRun:
    """What one worker asked for and held."""

    step: tuple[Collective, ...]
    """In every step, in order; meetings of copies are left out."""
    peak: int
    """Bytes of all tensors together, at most: parameters, gradients, optimizer states,
    activations and what the engine uses."""
    held: int
    """Bytes between two steps."""


def rehearse(placement: Placement, job: Job, workers: int, rank: int = 0) -> DryRun:
    """Play one worker for a few steps with whole batches.

    Args:
        placement: what is rehearsed.
        job: what is trained.
        workers: how many there would be.
        rank: which of them to play.

    Raises:
        ValueError: the model or its loss needs the content of tensors.
    """
    placement.check(workers)
    device = torch.device("cpu")
    waits = Waits(time.monotonic, lambda _: None)
    group = FakeGroup(rank, workers, device)
    one, target = example(job, 1), _target(job)
    noted: list[Noted] = []
    with closing(group), warnings.catch_warnings(), imagining(), Ledger(waits.note) as ledger:
        bound = placement.bind(job, group, device, waits)
        share = -(-job.batch_sizes.at(0) // bound.replicas)
        for _ in range(_STEPS):
            noted.clear()
            waits.noted = noted
            inputs = torch.zeros(share, *one.shape[1:], dtype=one.dtype)
            targets = torch.zeros(share, *target.shape[1:], dtype=target.dtype)
            bound.gradient(inputs, targets, 1.0)
            bound.step(1.0)
            del inputs, targets
        held, peak = ledger.held, ledger.peak
    step = tuple(_collective(one) for one in noted)
    return DryRun(step, peak, held)


def _collective(noted: Noted) -> Collective:
    kind: Any = noted.kind
    return Collective(kind, noted.size, noted.workers)


def _target(job: Job) -> torch.Tensor:
    """A target, as a batch of one."""
    target = job.data[0][1]
    return torch.as_tensor(target).unsqueeze(0)
