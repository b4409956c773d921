"""Description of a job for `results.json`: its model, its optimizer and its data."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from manyhands.reports import DataRecord, ModelRecord, OptimizerRecord
from manyhands.seeding import random_state, restore_random_state

if TYPE_CHECKING:
    from collections.abc import Mapping

    from manyhands.job import Job


@dataclass(frozen=True)
class JobRecord:
    """What a job trains, and with what."""

    data: DataRecord
    model: ModelRecord | None = None
    """None if the model cannot be created in this process; the runs show why."""
    optimizer: OptimizerRecord | None = None


def describe_job(job: Job) -> JobRecord:
    """The job's model, optimizer and data.

    Model and optimizer are created once: on the meta device, without memory, or on the CPU if they
    cannot be created there.
    """
    return _created(job, "meta") or _created(job, "cpu") or JobRecord(_data(job))


def _created(job: Job, device: str) -> JobRecord | None:
    """The record, from a model on that device; None if it cannot be created there."""
    state = random_state()
    try:
        with warnings.catch_warnings(), torch.device(device):
            warnings.simplefilter("ignore")  # loading parameters on the meta device warns
            model = job.model()
            optimizer = job.make_optimizer(model)
            return JobRecord(_data(job), _model(model), _optimizer(optimizer))
    except Exception:  # noqa: BLE001 - whatever it is, the runs will show it
        return None
    finally:
        restore_random_state(state)


def _data(job: Job) -> DataRecord:
    held_out = job.validation
    return DataRecord(
        name=type(job.data).__name__,
        samples=0 if job.streams else job.epoch_samples,
        validation_name=None if held_out is None else type(held_out).__name__,
        validation_samples=None if held_out is None else len(held_out),
    )


def _model(model: torch.nn.Module) -> ModelRecord:
    parameters = [*model.parameters()]
    return ModelRecord(
        name=type(model).__name__,
        parameters=sum(one.numel() for one in parameters),
        bytes=sum(one.numel() * one.element_size() for one in parameters),
    )


def _optimizer(optimizer: torch.optim.Optimizer) -> OptimizerRecord:
    options = _plain(optimizer.defaults)
    groups = []
    for group in optimizer.param_groups:
        own = _plain({name: value for name, value in group.items() if name != "params"})
        size = sum(one.numel() for one in group["params"])
        differing = {name: value for name, value in own.items() if options.get(name) != value}
        groups.append({"parameters": size} | differing)
    return OptimizerRecord(name=type(optimizer).__name__, options=options, groups=tuple(groups))


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _value(value) for name, value in options.items()}


def _value(value: Any) -> Any:
    """An option as JSON has it; what JSON cannot hold as text."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_value(item) for item in value]
    if isinstance(value, torch.Tensor) and value.numel() == 1 and not value.is_meta:
        return value.item()
    return str(getattr(value, "__name__", type(value).__name__))
