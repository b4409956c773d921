"""Gradients of a job's first steps, on one worker's share of a batch."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, cast

import torch

from manyhands.lab.break_even.idle_time import IdleTime
from manyhands.live.worker.loading import load_here
from manyhands.parameters import Layout
from manyhands.parameters.gradients import backward
from manyhands.parameters.initial.shard_values import make
from manyhands.seeding import Seeded, epoch_seed

if TYPE_CHECKING:
    from collections.abc import Sequence, Sized

    from manyhands.job import Job
    from manyhands.parameters import Shard

_STEPS = 6
_LEAST = 2
_MOST_STREAMED = 10_000
"""Samples of a stream."""
_MEMORY = 1 << 30
"""Bytes of gradients up to which those of all steps are kept."""


@dataclass(frozen=True)
class FirstGradients:
    """Gradients of consecutive steps."""

    updates: tuple[tuple[torch.Tensor, ...], ...]
    """By step, one vector per dtype."""
    buffers: int
    """Bytes of buffers, which are sent beside gradients and are not encoded."""
    samples: int
    """Samples of each gradient."""
    seconds: float
    """Median time of a gradient."""
    step: float = 0.0
    """Median time of a step of the optimizer."""


def first_gradients(job: Job, workers: int) -> FirstGradients:
    """Train a job for a few steps in this process; a batch is one worker's share of `global_batch`.

    Args:
        job: the job.
        workers: number of workers that share a batch.
    """
    model, optimizer = make(job)
    (shard,) = Layout.of(model, optimizer, 1).shards
    model.train()
    samples = max(1, job.batch_sizes.at(0) // workers)
    seeded, seed = Seeded(job.data, job.collate_fn), epoch_seed(job.seed, 0)
    indices = itertools.cycle(_order(job))
    steps = max(_LEAST, min(_STEPS, _MEMORY // max(1, shard.nbytes)))
    updates, times, steps_taken, idle = [], [], [], IdleTime()
    for _ in range(steps):
        wanted = torch.tensor(list(itertools.islice(indices, samples)))
        inputs, targets = job.divide(load_here(job, seeded, seed, wanted))
        idle.pass_by()
        begun = time.perf_counter()
        backward(job, torch.device("cpu"), model, inputs, targets, len(wanted))
        times.append(time.perf_counter() - begun)
        updates.append(_vectors(model, shard))
        idle.pass_by()
        begun = time.perf_counter()
        optimizer.step()
        steps_taken.append(time.perf_counter() - begun)
        optimizer.zero_grad()
    buffers = sum(buffer.nbytes for buffer in shard.buffers)
    return FirstGradients(tuple(updates), buffers, samples, median(times), median(steps_taken))


def _order(job: Job) -> Sequence[int]:
    """The samples in a random order, or those of a stream in its own."""
    if not job.streams:
        generator = torch.Generator().manual_seed(job.seed)
        return torch.randperm(len(cast("Sized", job.data)), generator=generator).tolist()
    return range(len(Seeded(job.data, None).first(epoch_seed(job.seed, 0), _MOST_STREAMED)))


def _vectors(model: torch.nn.Module, shard: Shard) -> tuple[torch.Tensor, ...]:
    """The gradients in the order of a shard's parameters, one vector per dtype."""
    named = dict(model.named_parameters())
    by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
    for fragment in shard.parameters:
        parameter = named[fragment.name]
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        by_dtype.setdefault(fragment.dtype, []).append(gradient.detach().reshape(-1))
    return tuple(torch.cat(parts) for parts in by_dtype.values())
