"""Checks of the fields of a `Job` when it is made."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast, get_args

from torch import nn

from manyhands.data.sized import SizedData
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
        if not isinstance(data, SizedData) and (name == "data" or data is not None):
            raise TypeError(
                f"{name} of type {type(data).__name__} has no length or no items; "
                "give a map-style dataset (__len__ and __getitem__)"
            )
    if (job.loss is None) == (job.objective is None):
        raise TypeError(
            "give the job one of loss=loss(outputs, targets) and objective=objective(model, "
            f"batch), got {'neither' if job.loss is None else 'both'}"
        )
    computes = "loss" if job.objective is None else "objective"
    for name in ("model", "optimizer", computes):
        if not callable(getattr(job, name)):
            raise TypeError(
                f"{name} must be something to call (a class or a function), "
                f"not {getattr(job, name)!r}"
            )
    if isinstance(job.model, nn.Module):
        raise TypeError(
            f"model is a {type(job.model).__name__} already; give what makes one (its class, "
            "or lambda: ...), because every worker makes its own"
        )


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
    if job.autocast not in (None, "bfloat16"):
        raise ValueError(f'autocast must be "bfloat16" or None, not {job.autocast!r}')
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


def _check_evaluations(job: JobFields) -> None:
    given = job.measures
    names = tuple(given.replace(",", " ").split() if isinstance(given, str) else given)
    object.__setattr__(job, "measures", names)
    for name in names:
        if name not in MEASURES:
            raise ValueError(unknown(f"there is no measure {name!r}", name, MEASURES))
    if names and job.validation is None:
        raise ValueError(f"measures={names!r} are recorded at evaluations: give validation data")
    if job.evaluate_every is None:
        return
    if not isinstance(job.evaluate_every, Every):
        raise TypeError(
            "evaluate_every must be an interval, as in mh.every(samples=5000), "
            f"not {job.evaluate_every!r}"
        )
    if job.validation is None:
        raise ValueError(f"evaluate_every={job.evaluate_every!r} needs validation data")


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


def _check_whole(name: str, value: object) -> None:
    if not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be a whole number, an int, not {value!r}")
