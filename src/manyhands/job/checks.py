"""Checks of the fields of a `Job` when it is made."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast, get_args

from torch import nn
from torch.utils.data import DistributedSampler

from manyhands.data.sized import SizedData
from manyhands.data.stream import is_stream
from manyhands.intervals import Every
from manyhands.job.fields import MEASURES, Durability
from manyhands.notation.error import unknown

if TYPE_CHECKING:
    from manyhands.job.fields import JobFields


def check_fields(job: JobFields) -> None:
    """Refuse fields of the wrong type or out of range, with what to give instead.

    Raises:
        TypeError: a field has the wrong type; a model was given instead of its class.
        ValueError: a field is out of range, or there is no limit.
    """
    _check_data(job)
    _check_start(job)
    _check_callbacks(job)
    _check_limits(job)
    _check_computation(job)
    _check_evaluations(job)
    _check_batch(job)
    _check_rate(job)


def _check_start(job: JobFields) -> None:
    if job.start is not None and not isinstance(job.start, (str, os.PathLike)):
        raise TypeError(
            f"start must be the path of existing weights, not a {type(job.start).__name__}: store "
            "tensors with safetensors.torch.save_file first"
        )


def _check_callbacks(job: JobFields) -> None:
    for one in job.callbacks:
        if not hasattr(one, "on_evaluation"):
            raise TypeError(
                f"callbacks must be objects with the methods of mh.callbacks.Callback, got {one!r}"
            )


def _check_data(job: JobFields) -> None:
    for name in ("data", "validation"):
        data = getattr(job, name)
        if name == "data" and is_stream(data):
            _check_stream(job)
        elif not isinstance(data, SizedData) and (name == "data" or data is not None):
            raise TypeError(
                f"{name} of type {type(data).__name__} has no length or no items; "
                "give a map-style dataset (__len__ and __getitem__)"
            )
    _check_sampler(job)
    if (job.loss is None) == (job.objective is None):
        raise TypeError(
            "give the job one of loss=loss(outputs, targets) and objective=objective(model, "
            f"batch), got {'neither' if job.loss is None else 'both'}"
        )
    given: dict[str, object] = {"model": job.model, "optimizer": job.optimizer}
    if isinstance(job.objective, Mapping):
        given |= _objectives(job.objective)
    elif job.objective is not None:
        given["objective"] = job.objective
    else:
        given["loss"] = job.loss
    for name, value in given.items():
        if not callable(value):
            raise TypeError(
                f"{name} must be something to call (a class or a function), not {value!r}"
            )
    if isinstance(job.model, nn.Module):
        raise TypeError(
            f"model is a {type(job.model).__name__} already; give what makes one (its class, "
            "or lambda: ...), because every worker makes its own"
        )


def _check_stream(job: JobFields) -> None:
    """Refuse what needs the length of the data, which a stream does not have."""
    if hasattr(job.data, "__next__"):
        raise TypeError(
            "data is an iterator, which can be read only once; give an IterableDataset, whose "
            "__iter__ starts at the first sample each time"
        )
    reasons = {
        "epochs": (job.epochs is not None, "give samples or seconds"),
        "sampler": (job.sampler is not None, "shuffle in the stream itself"),
        "lr_schedule": (
            job.lr_schedule is not None,
            "give lr_scheduler, which is stepped once per global batch",
        ),
        'scheduler_interval="epoch"': (
            job.lr_scheduler is not None and job.scheduler_interval == "epoch",
            'use "step"',
        ),
        "a global_batch that changes": (
            isinstance(job.global_batch, Mapping) and len(job.global_batch) > 1,
            "give one size",
        ),
        "evaluate_every=mh.every(epochs=...)": (
            isinstance(job.evaluate_every, Every) and job.evaluate_every.epochs is not None,
            "use mh.every(samples=...) or mh.every(seconds=...)",
        ),
        "checkpoint=mh.every(epochs=...)": (
            isinstance(job.checkpoint, Every)
            and any(one and one.epochs for one in (job.checkpoint, job.checkpoint.memory)),
            "use mh.every(steps=...) or mh.every(seconds=...)",
        ),
    }
    for what, (given, remedy) in reasons.items():
        if given:
            raise TypeError(
                f"{what} is not possible with data of type {type(job.data).__name__}, a stream, "
                f"whose length is not known: {remedy}"
            )


def _check_sampler(job: JobFields) -> None:
    sampler = job.sampler
    if sampler is None:
        return
    if isinstance(sampler, DistributedSampler):
        raise TypeError(
            "sampler is a DistributedSampler, and Manyhands divides the samples among workers "
            "itself: give the sampler of a script with one process"
        )
    if not hasattr(sampler, "__iter__") or not hasattr(sampler, "__len__"):
        raise TypeError(
            "sampler must be iterable and have a length, as WeightedRandomSampler(weights, 1000), "
            f"not {sampler!r}"
        )
    if hasattr(sampler, "batch_size"):
        raise TypeError(
            f"sampler of type {type(sampler).__name__} returns batches, and global_batch is the "
            "batch size here: give a sampler of single indices"
        )


def _objectives(objectives: Mapping[Any, Any]) -> dict[str, Any]:
    """Several objectives, by what messages call them."""
    if not objectives:
        raise ValueError("objective={} has no objectives: give at least one")
    for name in objectives:
        if not isinstance(name, str) or not name.isidentifier():
            raise TypeError(
                f"the name of an objective must be a word such as 'generator', got {name!r}"
            )
    return {f"objective[{name!r}]": one for name, one in objectives.items()}


def _check_limits(job: JobFields) -> None:
    for name in ("samples", "num_workers", "seed", "micro_batch"):
        value = getattr(job, name)
        if value is not None:
            _check_whole(name, value)
    limits = {"epochs": job.epochs, "samples": job.samples, "seconds": job.seconds}
    for name, limit in limits.items():
        if limit is not None and not 0 < limit < math.inf:
            raise ValueError(f"{name} must be above 0, not {limit}")
    if job.target is None and all(limit is None for limit in limits.values()):
        raise ValueError("say when to stop: give epochs, samples, seconds or target")
    if job.num_workers < 0:
        raise ValueError(f"num_workers must be 0 or more, not {job.num_workers}")
    if job.micro_batch is not None and job.micro_batch < 1:
        raise ValueError(f"micro_batch must be at least 1 sample, not {job.micro_batch}")
    if job.durability == "host":
        raise ValueError(
            'durability="host" needs parameter servers on a second host, and all servers of a '
            'run are on its first: use "power", and a run folder on a disk that outlives the '
            "host"
        )
    if job.durability not in get_args(Durability):
        raise ValueError(f'durability must be "none", "process" or "power", not {job.durability!r}')
    if job.clip is not None and not 0 < job.clip < math.inf:
        raise ValueError(f"clip must be a norm above 0, not {job.clip}")


def _check_computation(job: JobFields) -> None:
    if job.autocast not in (None, "bfloat16", "float16"):
        raise ValueError(f'autocast must be "bfloat16", "float16" or None, not {job.autocast!r}')
    if job.sync_batchnorm and job.micro_batch is not None:
        raise ValueError(
            "sync_batchnorm=True normalises by all samples of a global batch, and "
            f"micro_batch={job.micro_batch} computes a part of them at a time: leave out one of "
            "the two"
        )
    if job.ema is not None and not 0 <= job.ema < 1:
        raise ValueError(
            f"ema must be a decay of at least 0 and below 1, such as 0.999, not {job.ema}"
        )


def _check_evaluations(job: JobFields) -> None:
    given = job.measures
    names = tuple(given.replace(",", " ").split() if isinstance(given, str) else given)
    object.__setattr__(job, "measures", names)
    for name in names:
        if name not in MEASURES:
            raise ValueError(unknown(f"there is no measure {name!r}", name, MEASURES))
    if names and job.validation is None:
        raise ValueError(f"measures={names!r} are recorded at evaluations: give validation data")
    _check_checkpoint(job)
    if job.evaluate_every is None:
        return
    if not isinstance(job.evaluate_every, Every):
        raise TypeError(
            "evaluate_every must be an interval, as in mh.every(samples=5000), "
            f"not {job.evaluate_every!r}"
        )
    if job.evaluate_every.steps is not None:
        raise ValueError(
            "evaluations are counted in samples, which mean the same for any global batch: use "
            "evaluate_every=mh.every(samples=...)"
        )
    if job.evaluate_every.to:
        raise ValueError("to= is for checkpoints: evaluations store no files")
    if job.evaluate_every.memory is not None:
        raise ValueError("memory= is for checkpoints: evaluations keep nothing")
    if job.validation is None:
        raise ValueError(f"evaluate_every={job.evaluate_every!r} needs validation data")


def _check_checkpoint(job: JobFields) -> None:
    if job.checkpoint is not None and not isinstance(job.checkpoint, Every):
        raise TypeError(
            f"checkpoint must be an interval, as in mh.every(seconds=600), not {job.checkpoint!r}"
        )
    _check_whole("keep", job.keep)
    if job.keep < 1:
        raise ValueError(f"keep must be at least 1 checkpoint, got {job.keep}")


def _check_batch(job: JobFields) -> None:
    given = job.global_batch
    if not isinstance(given, Mapping):
        given = {0: given}
    elif 0 not in given:
        raise ValueError(f"global_batch {given} does not say how large it is at first: {{0: …}}")
    for epochs, size in cast("Mapping[Any, Any]", given).items():
        if not hasattr(epochs, "__float__") or not 0 <= epochs < math.inf:
            raise ValueError(f"global_batch cannot change after {epochs!r} epochs; give numbers")
        _check_whole("global_batch", size)
        if size < 1:
            raise ValueError(f"global_batch must be at least 1, not {size}")


def _check_rate(job: JobFields) -> None:
    if job.lr_schedule is not None and not callable(job.lr_schedule):
        raise TypeError(
            "lr_schedule must be a function from epochs to a factor of the learning "
            f"rate, as mh.lr_schedules.cosine(10), not {job.lr_schedule!r}; the learning "
            "rate itself is the optimizer's, and docs/meanings.md translates torch's schedulers"
        )
    if job.lr_schedule is not None and job.lr_scheduler is not None:
        raise TypeError("give the job one of lr_schedule and lr_scheduler, got both")
    if job.lr_scheduler is not None and not callable(job.lr_scheduler):
        raise TypeError(
            "lr_scheduler must be a function that returns a scheduler for an optimizer, "
            f"as lambda optimizer: StepLR(optimizer, 30), not {job.lr_scheduler!r}"
        )
    if job.scheduler_interval not in ("step", "epoch"):
        raise ValueError(
            f'scheduler_interval must be "step" or "epoch", not {job.scheduler_interval!r}'
        )
    if job.lr_scheduler is None and job.scheduler_interval != "step":
        raise ValueError(
            f'scheduler_interval="{job.scheduler_interval}" says when lr_scheduler is stepped, and '
            "the job has none: leave it out, or give lr_scheduler"
        )
    if job.lr_scheduler is None and job.plateau_metric is not None:
        raise ValueError(
            f"plateau_metric={job.plateau_metric!r} is what ReduceLROnPlateau depends on, and the "
            "job has no lr_scheduler: leave it out, or give lr_scheduler"
        )


def _check_whole(name: str, value: object) -> None:
    if not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be a whole number, an int, not {value!r}")
