"""Trial batch: runs the job on one batch before any process is started.

An error in the first batch would be raised on every worker, seconds later and in as many
tracebacks; an error in the first evaluation, or in saving the model, after an epoch or at the end.
All of them can be found in one process beforehand, at the cost of a few forward passes
(`docs/decisions/0035-tried-before-the-start.md`).

A model of more than `LARGEST` bytes, or one for accelerators, is not run here: it is created on
torch's `meta` device, which needs no memory, and only its parameters and the optimizer are checked.
"""

from __future__ import annotations

import contextlib
import random
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from manyhands.data.stream import is_stream
from manyhands.data.taking import preview
from manyhands.failure import Refused, refusing
from manyhands.files.checkpoint import check_savable
from manyhands.parameters.gradients import autocast, check_scalar, compute_loss, evaluate_batch
from manyhands.parameters.initial.start import check_start
from manyhands.parameters.optional.loss_parameters import check_loss_parameters
from manyhands.parameters.optional.model_calls import check_calls
from manyhands.parameters.optional.plateau import schedule_of
from manyhands.parameters.weights.loss_division import division_words
from manyhands.parameters.weights.loss_weight import measuring
from manyhands.script.user_line import user_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn

    from manyhands.job import Job
    from manyhands.strategies import Strategy

LARGEST = 1 << 28
"""Bytes of the largest model that is created for the trial."""
_MOST = 32
"""The most samples in a trial batch: enough for every layer, and fast to compute."""


def try_out(
    job: Job,
    workers: int,
    devices: Sequence[str],
    *,
    one_weight: bool = False,
    strategy: Strategy | None = None,
) -> str:
    """Run the model, the loss and the metrics on one batch, without training.

    Args:
        job: the job.
        workers: number of workers among which a global batch is divided.
        devices: devices of the workers.
        one_weight: whether what a worker sends has one weight, as under protocols.
        strategy: the strategy; without one, it is not checked how often workers call the model.

    Returns:
        Why several workers do not train as one; empty if nothing is known of that.

    Raises:
        Refused: the job fails; the message states in which call and on which shapes.
    """
    with torch.random.fork_rng(devices=[]), _python_kept(), warnings.catch_warnings():
        # Workers give the same warnings again, and those are shown.
        warnings.simplefilter("ignore")
        on_cpu = all(device == "cpu" for device in devices)
        sketch = _sketch(job)
        if sketch is not None:
            _check_state(job, sketch)
        if on_cpu and (sketch is None or _nbytes(sketch) <= LARGEST):
            model = _real(job)
            if sketch is None:
                _check_state(job, model)
            _try_batches(job, model, max(1, job.batch_sizes.at(0) // workers))
            if strategy is not None:
                check_calls(job, model, strategy.needs(workers).calling_alike, strategy)
            if workers > 1 or job.micro_batch is not None:
                return division_words(job, model, one_weight=one_weight)
    return ""


@contextlib.contextmanager
def _python_kept() -> Iterator[None]:
    """Restore the states of Python's and NumPy's random generators."""
    kept, numbers = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(kept)
        np.random.set_state(numbers)


def _sketch(job: Job) -> nn.Module | None:
    """The model on the meta device; None if it cannot be created there."""
    try:
        with torch.device("meta"):
            return job.model()
    except Exception:  # noqa: BLE001 - creating it on its device will raise any real error
        return None


def _real(job: Job) -> nn.Module:
    torch.manual_seed(job.seed)
    with _naming("model()"):
        return job.model()


def _nbytes(model: nn.Module) -> int:
    tensors = [*model.parameters(), *model.buffers()]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _check_state(job: Job, model: nn.Module) -> None:
    """Refuse a model that cannot be saved, other weights, and an optimizer of other modules."""
    try:
        check_savable(model)
        check_start(job, model)
    except ValueError as error:
        raise Refused(str(error)) from error
    with _naming("optimizer(model)"):
        optimizer = job.make_optimizer(model)
    check_optimizer(model, optimizer)
    with refusing():
        check_loss_parameters(job, model)
    with _naming("lr_scheduler(optimizer)"):
        schedule_of(job, optimizer)


def check_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer with parameters that do not belong to the model."""
    own = {id(parameter) for parameter in model.parameters()}
    given = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    foreign = [tuple(one.shape) for one in given if id(one) not in own]
    if foreign:
        shapes = ", ".join(str(list(shape)) for shape in foreign[:3])
        raise Refused(
            f"the optimizer has {len(foreign)} parameters that are not the model's (of shape "
            f"{shapes}): only the model's are exchanged between workers and saved. Make them "
            "parameters of the model, for example with a module that contains model and loss"
        )


def _try_batches(job: Job, model: nn.Module, size: int) -> None:
    tried: list[tuple[str, Any]] = [("training", job.data)]
    if job.validation is not None:
        tried.append(("validation", job.validation))
    for name, data in tried:
        if not is_stream(data) and not len(data):
            continue  # refused with a message of its own, where it is used
        samples = min(size, job.micro_batch or size, _MOST)
        batch = _load(job, data, samples)
        _try(job, model, name, batch)
        if name == "training":
            with refusing():
                check_loss_parameters(job, model, job.divide(batch))


def _load(job: Job, data: Any, samples: int) -> Any:
    with _naming("loading a batch"):
        return preview(data, job.collate_fn, samples)


@torch.no_grad()
def _try_objective(job: Job, model: nn.Module, name: str, batch: Any) -> None:
    device, names = torch.device("cpu"), job.objective_names or ("objective",)
    if name == "training":
        for called, one in zip(names, job.one_by_one, strict=True):
            where = f"{called}(model, batch) on a {name} batch"
            with _naming(where, f"batch {_shape(batch)}"), autocast(job, device):
                check_scalar(compute_loss(one, model, batch, None))
        return
    where = f"{' and '.join(names)}(model, batch) on a {name} batch"
    with _naming(where, f"batch {_shape(batch)}"):
        with _naming("the target"):
            metrics = job.metric_objects
        _, outputs, targets = evaluate_batch(job, measuring(job), device, model, batch, None) or (
            None,
            None,
            None,
        )
        for metric in metrics:
            metric.statistics(outputs, targets)


@torch.no_grad()
def _try(job: Job, model: nn.Module, name: str, batch: Any) -> None:
    with _naming("the data"):
        inputs, targets = job.divide(batch)
    model.train(name == "training")
    if job.objective is not None:
        _try_objective(job, model, name, batch)
        return
    shapes = f"inputs {_shape(inputs)}"
    with autocast(job, torch.device("cpu")):
        with _naming(f"model(inputs) on a {name} batch", shapes):
            outputs = model(inputs)
        shapes += f", outputs {_shape(outputs)}, targets {_shape(targets)}"
        with _naming(f"loss(outputs, targets) on a {name} batch", shapes):
            check_scalar(compute_loss(job, lambda _: outputs, inputs, targets))
    if name == "validation":
        with _naming("the target"):
            measures = job.metric_objects
        for metric in measures:
            where = f"the metric {metric.name!r} on a validation batch"
            with _naming(where, f"{shapes}; metrics=() omits it"):
                metric.statistics(outputs, targets)


def _shape(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return f"of type {type(value).__name__}"


class _naming:  # noqa: N801 - reads as a statement
    """Turn an exception into Refused, with the call that raised it and its arguments."""

    def __init__(self, what: str, on: str = "") -> None:
        self._what = what
        self._on = on

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if not isinstance(error, Exception):
            return
        on = f" ({self._on})" if self._on else ""
        raise Refused(
            f"the job fails in {self._what}{on}: {type(error).__name__}: {error}"
            f"{_place(error)}. Nothing was started"
        ) from error


def _place(error: BaseException) -> str:
    """The last line of the user's own code in a traceback."""
    found = user_line(error)
    return f", at {found}" if found else ""
