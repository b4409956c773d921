"""Parameters of a loss, which no optimizer trains: found before a job is trained."""

from __future__ import annotations

import contextlib
import functools
import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from manyhands.parameters.gradients import compute_loss
from manyhands.parameters.weights.loss_weight import own_loss

if TYPE_CHECKING:
    from collections.abc import Iterator

    from manyhands.job import Job


def loss_parameters(job: Job, model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """Trainable parameters of a job's loss that are not the model's, by the name of their module.

    Those of a loss that is a module, and of modules to which a function refers.
    """
    own = {id(one) for one in model.parameters()}
    found: dict[str, list[nn.Parameter]] = {}
    modules = [pair for each in job.one_by_one for pair in _modules_of(own_loss(each))]
    for name, module in modules:
        left = [one for one in module.parameters() if one.requires_grad and id(one) not in own]
        if left:
            found[name] = left
    return found


def check_loss_parameters(job: Job, model: nn.Module, batch: tuple[Any, Any] | None = None) -> None:
    """Raise ValueError if the loss has parameters that would stay as they are.

    A module to which a function refers may be there for something else, such as a teacher whose
    outputs are computed without gradients. So it counts only if the gradient of a loss reaches it.

    Args:
        job: the job.
        model: its model; with a batch, it must be able to compute.
        batch: inputs and targets; None finds only a loss that is a module itself.
    """
    for one in job.one_by_one:
        _check_one(one, model, batch)


def _check_one(job: Job, model: nn.Module, batch: tuple[Any, Any] | None) -> None:
    found = loss_parameters(job, model)
    given = own_loss(job)
    if batch is not None and found and not isinstance(given, nn.Module):
        with torch.enable_grad(), _untouched(model):
            loss = compute_loss(job, model, *batch)
            found = {name: some for name, some in found.items() if _reaches(loss, some)}
    elif not isinstance(given, nn.Module):
        return
    for name, some in found.items():
        raise ValueError(words(name, some))


@contextlib.contextmanager
def _untouched(model: nn.Module) -> Iterator[None]:
    """Restore the model's buffers and the state of torch's generator."""
    kept = [buffer.clone() for buffer in model.buffers()]
    with torch.random.fork_rng(devices=[]):
        yield
    with torch.no_grad():
        for buffer, before in zip(model.buffers(), kept, strict=True):
            buffer.copy_(before)


def words(name: str, parameters: list[nn.Parameter]) -> str:
    """A message about the parameters of a loss."""
    return (
        f"the loss has {len(parameters)} parameters of its own ({name}), which are neither trained "
        "nor saved: make them a part of the model, for example with a module that contains model "
        "and loss and Job(objective=...), or freeze them with requires_grad_(False)"
    )


def _reaches(loss: torch.Tensor, parameters: list[nn.Parameter]) -> bool:
    """Whether a loss depends on any of these parameters."""
    if not loss.requires_grad:
        return False
    computed = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    return any(one is not None for one in computed)


def _modules_of(value: Any) -> Iterator[tuple[str, nn.Module]]:
    """The modules that a loss is, or refers to, each with a name."""
    if isinstance(value, nn.Module):
        yield type(value).__name__, value
        return
    if isinstance(value, functools.partial):
        for item in (value.func, *value.args, *value.keywords.values()):
            if callable(item):
                yield from _modules_of(item)
        return
    if inspect.ismethod(value):
        yield from _attributes(value.__self__)
        return
    function = inspect.unwrap(value) if callable(value) else value
    if not inspect.isfunction(function):
        yield from _attributes(value)
        return
    known = inspect.getclosurevars(function)
    for name, item in {**known.globals, **known.nonlocals}.items():
        if isinstance(item, nn.Module):
            yield name, item


def _attributes(value: Any) -> Iterator[tuple[str, nn.Module]]:
    """The modules among the attributes of an object."""
    if isinstance(value, nn.Module):
        yield type(value).__name__, value
        return
    for name, item in getattr(value, "__dict__", {}).items():
        if isinstance(item, nn.Module):
            yield name, item
