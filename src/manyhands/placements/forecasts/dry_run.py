"""Dry run: one process executes one worker's part of a placement on fake tensors.

Nothing is sent and nothing is computed: tensors have shapes and no content. The collectives that
the engine calls, and the memory that it holds, are those of a real run.
"""

from __future__ import annotations

import time
import warnings
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from manyhands.costs import Collective
from manyhands.data.taking import preview
from manyhands.engine.fake_tensors import Ledger, fake_tensors
from manyhands.placements.model.sample_batch import example
from manyhands.transport.fake_group import FakeGroup
from manyhands.transport.waits import Noted, Waits

if TYPE_CHECKING:
    from typing import Any

    from manyhands.job import Job
    from manyhands.placements.placement import Placement

_STEPS = 3
"""Some memory is allocated in the first step and adds to the peak only in the second."""


@dataclass(frozen=True)
class DryRun:
    """The collectives and the memory of one worker."""

    step: tuple[Collective, ...]
    """Collectives of a step, in order; without the outer synchronisations of replicas."""
    peak: int
    """Peak bytes of all tensors: parameters, gradients, optimizer states, activations and the
    engine's buffers."""
    held: int
    """Bytes between two steps."""


def dry_run(placement: Placement, job: Job, workers: int, rank: int = 0) -> DryRun:
    """Execute a few steps of one worker, with full batches, on fake tensors.

    Args:
        placement: the placement.
        job: the job to train.
        workers: number of workers.
        rank: the worker to execute.

    Raises:
        ValueError: the model or its loss needs the content of tensors.
    """
    placement.check(workers)
    device = torch.device("cpu")
    waits = Waits(time.monotonic, lambda _: None)
    group = FakeGroup(rank, workers, device)
    one, target = example(job, 1), _target(job)
    noted: list[Noted] = []
    with closing(group), warnings.catch_warnings(), fake_tensors(), Ledger(waits.note) as ledger:
        bound = placement.bind(job, group, device, waits)
        share = -(-job.batch_sizes.at(0) // bound.replicas)
        for _ in range(_STEPS):
            noted.clear()
            waits.noted = noted
            inputs = torch.zeros(share, *one.shape[1:], dtype=one.dtype)
            targets = torch.zeros(share, *target.shape[1:], dtype=target.dtype)
            bound.gradient(inputs, targets, 1.0, share)
            bound.step(1.0)
            del inputs, targets
        held, peak = ledger.held, ledger.peak
    step = tuple(_collective(one) for one in noted)
    return DryRun(step, peak, held)


def _collective(noted: Noted) -> Collective:
    kind: Any = noted.kind
    return Collective(kind, noted.size, noted.workers)


def _target(job: Job) -> torch.Tensor:
    """The first target, as a batch of one."""
    _, targets = job.divide(preview(job.data, job.collate_fn, 1))
    return torch.as_tensor(targets)
