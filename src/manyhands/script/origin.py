"""Origin of a job: its script and name, and settings that the command line overrides."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import msgspec

from manyhands.intervals import Every
from manyhands.script.job_changes import JobChanges
from manyhands.script.unmeasured import UNMEASURED, UNSTORED

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import nn
    from torch.optim import Optimizer

    from manyhands.job import Job

    Made = Optimizer | Mapping[str, Optimizer]

NOTEBOOK = "notebook.py"
"""The file in a run's folder with the statements of a notebook that its job needs."""
_LR = re.compile(r"\s*((?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(x?)\s*")


class Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The script that any process can execute to get the job, and the job's name in it."""

    script: str
    package: str
    search: str
    """The first entry of the module search path."""
    argv: tuple[str, ...]
    job: str
    """The name at module level of the job, or of the function that makes it; or its place in a
    collection there: `jobs[0]`."""
    loop: str | None
    """The name of the user's own loop at module level."""
    source: str = ""
    """The text of the script, if it is not a file yet: that of a notebook's cells."""
    values: dict[str, Any] = {}
    """What the function that makes the job is given for its free parameters."""

    def stored(self, folder: Path) -> Origin:
        """This origin with its script as a file; one of a notebook is written to the folder."""
        if not self.source:
            return self
        path = (folder / NOTEBOOK).resolve()
        path.write_text(self.source, encoding="utf-8")
        return msgspec.structs.replace(self, script=str(path), source="")


@dataclass(frozen=True, kw_only=True)
class Overrides(JobChanges):
    """Settings of the job that a run replaces, as all of its processes get them."""

    durability: str | None = None
    """Failures that acknowledged updates of servers survive."""
    start: str | None = None
    """Weights to start from in place of the job's: those of a checkpoint."""
    start_digest: str | None = None
    """The SHA-256 of the weights that the job starts from."""
    timed_batch: int | None = None
    """Samples of a global batch, in a run of which only times are of interest: nothing is
    evaluated or stored."""
    timed_links: bool | None = None
    """Whether the links between hosts are measured before training."""
    double: bool | None = None
    """Whether the model and all floating numbers of the data are converted to float64, and nothing
    is evaluated."""
    perturbed: bool | None = None
    """Whether the initial parameters are changed by one rounding each, and nothing is evaluated:
    what becomes of that is what rounding does to this job."""


def override(job: Job, overrides: Overrides) -> Job:
    """The job with the settings of the command line."""
    names = {field.name for field in fields(job)}
    given = {
        name: getattr(overrides, name)
        for name in (field.name for field in fields(overrides))
        if getattr(overrides, name) is not None and name in names
    }
    # A limit on the command line replaces the script's samples and epochs. A target does not: it
    # may never be reached.
    limits = (overrides.epochs, overrides.samples, overrides.seconds)
    if any(limit is not None for limit in limits):
        given = {"epochs": None, "samples": None} | given
    if overrides.evaluate_every is not None:
        given["evaluate_every"] = Every.read(overrides.evaluate_every)
    if overrides.checkpoint is not None:
        given["checkpoint"] = Every.read(overrides.checkpoint, bare=False)
    if overrides.lr is not None:
        given["optimizer"] = AtLearningRate(job.optimizer, *read_lr(overrides.lr))
    start = job.start if overrides.start is None else overrides.start
    if overrides.start_digest is not None and start is not None:
        # The coordinator reads origins, and must not wait for torch.
        from manyhands.files.weights import StartWeights  # noqa: PLC0415

        given["start"] = StartWeights(os.fspath(start), overrides.start_digest)
    if overrides.double:
        given["model"] = DoubleModel(job.model)
        given["collate_fn"] = DoubleBatches(job.collate_fn)
    if overrides.perturbed:
        given["model"] = PerturbedModel(given.get("model", job.model))
    if overrides.double or overrides.perturbed:
        # Only the parameters are of interest, and evaluations would take most of the time.
        given |= UNMEASURED
    if overrides.timed_batch is not None:
        given |= {**UNMEASURED, **UNSTORED, "global_batch": overrides.timed_batch}
    return replace(job, **given)


@dataclass(frozen=True)
class DoubleModel:
    """A job's model function, whose models are in float64."""

    model: Callable[[], nn.Module]

    def __call__(self) -> nn.Module:
        """A new model."""
        return self.model().double()


@dataclass(frozen=True)
class PerturbedModel:
    """A job's model function, whose models have each number changed by one rounding, up or down."""

    model: Callable[[], nn.Module]

    def __call__(self) -> nn.Module:
        """A new model."""
        import torch  # noqa: PLC0415 - torch is lazy

        model, draw = self.model(), torch.Generator().manual_seed(0)
        with torch.no_grad():
            for one in model.parameters():
                if one.is_floating_point() or one.is_complex():
                    up = torch.randint(0, 2, one.shape, generator=draw).to(one.device)
                    one.mul_(1 + torch.finfo(one.dtype).eps * (2 * up - 1))
        return model


@dataclass(frozen=True)
class DoubleBatches:
    """A job's `collate_fn`, whose batches have float64 in place of other floating numbers."""

    collate: Callable[[list[Any]], Any] | None

    def __call__(self, samples: list[Any]) -> Any:
        """The batch of these samples."""
        from torch.utils.data import default_collate  # noqa: PLC0415 - torch is lazy

        return _as_double((self.collate or default_collate)(samples))


def _as_double(value: Any) -> Any:
    from manyhands.data.taking import rebuilt  # noqa: PLC0415 - torch is lazy

    if hasattr(value, "is_floating_point"):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, Mapping):
        return rebuilt(value, {key: _as_double(item) for key, item in value.items()})
    if isinstance(value, (list, tuple)):
        return rebuilt(value, [_as_double(item) for item in value])
    return value


def read_lr(text: str | float) -> tuple[float, bool]:
    """A learning rate, and whether it is a factor of the optimizer's own.

    >>> read_lr("0.01"), read_lr("0.5x")
    ((0.01, False), (0.5, True))

    Raises:
        ValueError: it is neither.
    """
    match = _LR.fullmatch(str(text))
    value = float(match[1]) if match else 0.0
    if match is None or not 0 < value < math.inf:
        raise ValueError(
            f"lr must be a learning rate above 0 such as 0.01, or a factor of the optimizer's own "
            f"such as 0.5x, got {text!r}"
        )
    return value, bool(match[2])


@dataclass(frozen=True)
class AtLearningRate:
    """A job's optimizer function, with another learning rate in the optimizers that it returns."""

    optimizer: Callable[[nn.Module], Made]
    value: float
    is_factor: bool

    def __call__(self, model: nn.Module) -> Made:
        """The optimizer of a model, or those of several objectives.

        Raises:
            ValueError: the parameter groups have different learning rates, and one is to replace
                them; or they have none.
        """
        optimizer = self.optimizer(model)
        several = list(optimizer.values()) if isinstance(optimizer, Mapping) else [optimizer]
        groups = [group for one in several for group in one.param_groups]
        if any("lr" not in group for group in groups):
            raise ValueError(
                f"lr cannot be changed: {type(several[0]).__name__} has a parameter group without "
                "a learning rate"
            )
        before = {float(group["lr"]) for group in groups}
        if len(before) > 1 and not self.is_factor:
            raise ValueError(
                f"lr={self.value:g} would replace different learning rates of parameter groups "
                f"({', '.join(f'{rate:g}' for rate in sorted(before))}): give a factor, as in 0.5x"
            )
        for group in groups:
            group["lr"] = group["lr"] * self.value if self.is_factor else self.value
        return optimizer
