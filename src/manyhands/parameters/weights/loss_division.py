"""Whether the loss of a batch is what the losses of its parts give, as workers combine them.

It is found on one batch, before a run: its loss is compared with those of two parts of its samples.
A mean over something that nobody has said, as a mask, tokens in one row or the nodes of graphs, is
not seen in the loss; its value shows it.
"""

from __future__ import annotations

import contextlib
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils.data import default_collate

from manyhands.data.stream import is_stream
from manyhands.data.taking import taker
from manyhands.parameters.gradients import compute_loss
from manyhands.parameters.weights.loss_weight import counting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn

    from manyhands.job import Job

    Term = tuple[object, float, float]

_SAMPLES = 8
_NEAR: Final = {torch.float64: 1e-9, torch.float32: 2e-5}
"""By dtype, how far two losses may be from each other, relatively, to be called equal."""


def first_batches(job: Job, samples: int) -> tuple[list[Any], list[int]]:
    """The batch of the first samples, twice, and two parts of it; and the samples of each."""
    data: Any = job.data
    known = samples if is_stream(data) else min(samples, len(data))
    take = taker(data) if job.collate_fn is None else None
    if take is None:
        several = getattr(data, "__getitems__", None)
        if is_stream(data):
            loaded = list(islice(iter(data), known))
        else:
            indices = list(range(known))
            loaded = list(several(indices)) if several else [data[index] for index in indices]
        return batches_of(loaded, job.collate_fn)
    bounds = _bounds(known)
    return [take(torch.arange(*one)) for one in bounds], [stop - start for start, stop in bounds]


def division_words(job: Job, model: nn.Module, *, one_weight: bool) -> str:
    """Why several workers do not train as one; empty if nothing is known of that.

    Args:
        job: the job.
        model: a model of the job's, whose random state is the caller's.
        one_weight: see `check_division`.
    """
    # What raises here raises in training, too, unless it is another batch size that does.
    with contextlib.suppress(Exception):
        batches, sizes = first_batches(job, _SAMPLES)
        for one in job.one_by_one:
            found = check_division(one, model, batches, sizes, one_weight=one_weight)
            if found:
                return f"several workers do not train as one: {found}"
    return ""


def batches_of(
    samples: Sequence[Any], collate: Callable[[list[Any]], Any] | None
) -> tuple[list[Any], list[int]]:
    """The batch of some samples, twice, and two parts of it; and the samples of each."""
    bounds = _bounds(len(samples))
    found = [(collate or default_collate)(list(samples[slice(*one)])) for one in bounds]
    return found, [stop - start for start, stop in bounds]


def _bounds(samples: int) -> list[tuple[int, int]]:
    first = max(1, samples // 4)
    whole = (0, samples)
    return [whole, whole, (0, first), (first, samples)] if samples > 1 else [whole]


def check_division(
    job: Job, model: nn.Module, batches: Sequence[Any], sizes: Sequence[int], *, one_weight: bool
) -> str:
    """Why a loss depends on how a batch is divided; empty if it does not.

    Args:
        job: the job, with one objective.
        model: the model, which is in evaluation mode meanwhile.
        batches: what `batches_of` returned.
        sizes: the samples of each.
        one_weight: whether what a worker sends has one weight, as under protocols; otherwise each
            mean over targets has its own.
    """
    if len(batches) < 2:
        return ""
    training = model.training
    model.eval()
    try:
        pairs = zip(batches, sizes, strict=True)
        each = [_terms(job, model, batch, size, one_weight=False) for batch, size in pairs]
        again, whole, parts = float(each[1][0]), float(each[0][0]), each[2:]
        limit = _NEAR.get(each[0][0].dtype, 1e-2) * max(1e-12, abs(whole))
        if not abs(again - whole) <= limit:
            # It is drawn at random, or is not finite, which is found in training.
            return ""
        if abs(_combined([terms for _, terms in parts]) - whole) > limit:
            return _words(batches[0], whole, sum(float(loss) for loss, _ in parts), limit)
        pairs = zip(batches[2:], sizes[2:], strict=True)
        alone = [_terms(job, model, batch, size, one_weight=True)[1] for batch, size in pairs]
        if one_weight and abs(_combined(alone) - whole) > limit:
            return (
                "the loss has several means that are not over the same number of targets, and an "
                "update has one weight, that of the first of them. For equal results use "
                "allreduce(), fully_sharded() or zero() without micro_batch, or a loss that is one "
                "mean: mh.Weighted(total, weight) from Job(objective=...)"
            )
    finally:
        model.zero_grad()
        model.train(training)
    return ""


def apart(job: Job, model: nn.Module, batches: Sequence[Any], sizes: Sequence[int]) -> float:
    """How far the loss of a batch is from that of its parts, relatively, in the model's mode.

    Args:
        job: the job, with one objective.
        model: the model.
        batches: what `batches_of` returned.
        sizes: the samples of each.
    """
    pairs = [*zip(batches, sizes, strict=True)]
    each = [_terms(job, model, *pair, one_weight=False) for pair in (pairs[0], *pairs[2:])]
    whole = float(each[0][0])
    return abs(_combined([terms for _, terms in each[1:]]) - whole) / max(1e-12, abs(whole))


def _terms(
    job: Job, model: nn.Module, batch: Any, samples: int, *, one_weight: bool
) -> tuple[torch.Tensor, list[Term]]:
    """The loss of a batch; and of each mean in it, what it is, its weight, and its value."""
    counted, loss = counting(job)
    value = compute_loss(counted, model, *job.divide(batch))
    return value.detach(), loss.terms(value, samples, one_weight=one_weight)


def _combined(parts: Sequence[Sequence[Term]]) -> float:
    """The loss of all parts together: the mean of each term over its own weights."""
    totals: dict[object, list[float]] = {}
    for terms in parts:
        for what, weight, value in terms:
            total = totals.setdefault(what, [0.0, 0.0])
            total[0] += weight * value
            total[1] += weight
    return sum(total / weight for total, weight in totals.values() if weight)


def _words(batch: Any, whole: float, total: float, limit: float) -> str:
    if abs(total - whole) <= limit:
        return (
            "the loss is a sum over the samples of a batch, and a worker sees a part of them: "
            "return the mean (reduction='mean')"
        )
    negative = any((one < 0).any() for one in _integers(batch))
    return (
        "the loss of a batch is not the mean of the losses of its samples, so it depends on how a "
        "batch is divided: "
        + (
            "targets below 0 are ignored, and the mean is over the others; return "
            "mh.Weighted(total, weight) from Job(objective=...)"
            if negative
            else "if it is a mean over something else than samples, return mh.Weighted(total, "
            "weight) from Job(objective=...); a loss between samples cannot be divided"
        )
    )


def _integers(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of integers in a nested batch."""
    if isinstance(value, torch.Tensor):
        if not value.is_floating_point() and value.dtype != torch.bool:
            yield value
    elif hasattr(value, "values"):
        for item in value.values():
            yield from _integers(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _integers(item)
