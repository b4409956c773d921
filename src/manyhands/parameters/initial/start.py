"""Initial values from existing weights: `Job(start=path)`.

A model is created as without them, and its tensors are overwritten one by one. So random generators
end in the same state, and a model that is created in parts keeps its part of the new values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from manyhands.files.weights import StartWeights, open_weights
from manyhands.parameters.initial.deferred import on_meta
from manyhands.seeding import random_state, restore_random_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import nn

    from manyhands.files.weights import StoredTensor, Weights
    from manyhands.job import Job

_NAMED: Final = 8
"""Names that a message lists."""


def load_start(job: Job, model: nn.Module) -> None:
    """Overwrite a model's parameters and buffers by the job's start; tensors on meta stay there.

    Raises:
        ValueError: the weights are not those of this model, or have changed.
    """
    if job.start is None:
        return
    weights = open_weights(job.start)
    check_start(job, model, weights)
    state = _state(model)
    if all(tensor.is_meta for tensor in state.values()):
        return
    complete = not any(tensor.is_meta for tensor in state.values())
    pinned = job.start.digest if complete and isinstance(job.start, StartWeights) else None
    with torch.no_grad():
        for name, value in weights.values(pinned):
            if not state[name].is_meta:
                state[name].copy_(value)


def check_start(job: Job, model: nn.Module, weights: Weights | None = None) -> None:
    """Refuse a start whose names or shapes are not those of the model.

    Args:
        job: the job, maybe without a start.
        model: its model; it may be on the meta device.
        weights: the job's start, if it is open already.

    Raises:
        ValueError: they differ; the message has the names.
    """
    if job.start is None:
        return
    found = (weights or open_weights(job.start)).tensors
    state = _state(model)
    first_names = _first_names(state)
    given = {first_names[name] for name in found if name in state}
    missing = [name for name in state if first_names[name] not in given]
    unexpected = [name for name in found if name not in state]
    shapes = [
        f"{name}: {list(found[name].shape)} in place of {list(tensor.shape)}"
        for name, tensor in state.items()
        if name in found and found[name].shape != tuple(tensor.shape)
    ]
    differences = [
        *_listed("the model has, and the weights lack", missing),
        *_listed("the weights have, and the model lacks", unexpected),
        *_listed("have another shape", shapes),
    ]
    if differences:
        raise ValueError(
            f"start={str(job.start)!r} does not fit the model: {'; '.join(differences)}. The names "
            "must be those of model.state_dict(): rename or leave out tensors in the file, or "
            "change the model"
        )
    _check_tied(job, found, first_names)
    _check_own(job, model, state)


def check_job_start(job: Job) -> None:
    """As `check_start`, with a model that is created for it: without memory, if possible.

    Raises:
        ValueError: as `check_start`.
    """
    if job.start is None:
        return
    before = random_state()
    try:
        try:
            model = on_meta(job.model)
        except Exception:  # noqa: BLE001 - not every model can be created on the meta device
            model = job.model()
    finally:
        restore_random_state(before)
    check_start(job, model)


def start_digest(job: Job) -> str | None:
    """The SHA-256 of the job's start; None without one.

    Raises:
        ValueError: there are no such weights.
    """
    return None if job.start is None else open_weights(job.start).digest()


def check_pinned(job: Job) -> None:
    """Check that the job's start has the content that it had where the run began.

    Raises:
        ValueError: it is missing, or has another content.
    """
    if isinstance(job.start, StartWeights):
        for _ in open_weights(job.start).values(job.start.digest):
            pass


def _state(model: nn.Module) -> dict[str, torch.Tensor]:
    return model.state_dict(keep_vars=True)


def _first_names(state: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """By name, the first name of the same tensor: tied parameters have several."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in state.items()}


def _check_tied(
    job: Job, found: Mapping[str, StoredTensor], first_names: Mapping[str, str]
) -> None:
    """Refuse different values for names of one tensor, of which only the last would count."""
    for name, first in first_names.items():
        if name == first or name not in found or first not in found:
            continue
        if found[name] != found[first] and not _equal(found[name], found[first]):
            raise ValueError(
                f"{first!r} and {name!r} are one tensor of the model, and have different values in "
                f"{job.start}: leave one of them out, or do not tie them"
            )


def _equal(one: StoredTensor, other: StoredTensor) -> bool:
    return (one.dtype, one.shape) == (other.dtype, other.shape) and torch.equal(
        one.read(), other.read()
    )


def _check_own(job: Job, model: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
    """Refuse a state with tensors that are not the model's own: writing to them has no effect."""
    own = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    foreign = [name for name, tensor in state.items() if id(tensor) not in own]
    if foreign:
        raise ValueError(
            f"start={str(job.start)!r} cannot be loaded: {', '.join(foreign[:_NAMED])} of the "
            "model's state_dict() is made by a hook or by get_extra_state. Load the weights in "
            "the function that makes the model, in place of start="
        )


def _listed(what: str, names: Iterable[str]) -> list[str]:
    named = [*names]
    if not named:
        return []
    more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
    return [f"{len(named)} that {what}: {', '.join(named[:_NAMED])}{more}"]
