"""What to train: a `Job`, which says nothing about how or where."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sized
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from manyhands.data.stream import ENDLESS, is_stream
from manyhands.data.taking import as_pair, fetch
from manyhands.job.checks import check_fields
from manyhands.job.fields import JobFields
from manyhands.job.optimizers import combine
from manyhands.metrics import Metric, metric
from manyhands.notation import Value
from manyhands.sampling.batches import BatchSizes, EvaluationPoints
from manyhands.stopping import EarlyStopping, Target

if TYPE_CHECKING:
    import torch
    from torch import nn

    from manyhands.intervals import Every
    from manyhands.objective import Objective

SETTINGS = (
    *("epochs", "samples", "seconds", "target", "early_stopping", "seed", "global_batch"),
    *("lr_schedule", "lr_scheduler", "clip"),
    *(
        "evaluate_every",
        "checkpoint",
        "measures",
        "micro_batch",
        "autocast",
        "activation_checkpointing",
    ),
    *("ema", "sync_batchnorm", "compile", "durability", "start"),
)
"""The fields of a job that a run records."""


@dataclass(frozen=True, kw_only=True)
class Job(JobFields):
    """What to train, and until when.

    The model and the optimizer are given as functions, because every worker makes its own. They
    are called under the job's seed, so that all replicas start with the same parameters.

    A job needs a limit: at least one of `epochs`, `samples`, `seconds` and `target`.

    Raises:
        TypeError: a field has the wrong type; a model was given instead of its class.
        ValueError: a field is out of range, or there is no limit.

    Example:
        >>> import torch, torch.nn.functional as F
        >>> import manyhands as mh
        >>> job = mh.Job(
        ...     model=lambda: torch.nn.Linear(2, 1),
        ...     optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        ...     loss=F.mse_loss,
        ...     data=torch.utils.data.TensorDataset(torch.ones(8, 2), torch.ones(8, 1)),
        ...     global_batch=4,
        ...     epochs=2,
        ...     metrics=(),
        ... )
        >>> job.budget
        16
    """

    _metrics: tuple[Metric, ...] = field(init=False, repr=False)
    _settled: bool = field(init=False, repr=False, compare=False)
    _target: Target | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_fields(self)
        self.lr_factor(0)
        usual = ("accuracy",) if self.objective is None else ()
        given = usual if self.metrics is None else self.metrics
        if isinstance(given, str) or not isinstance(given, Iterable):
            given = (given,)
        object.__setattr__(self, "_metrics", tuple(metric(spec) for spec in given))
        settled = self.metrics is not None or self.validation is None or not usual
        object.__setattr__(self, "_settled", settled)
        if self.early_stopping is not None and not isinstance(self.early_stopping, EarlyStopping):
            raise TypeError(
                "early_stopping must be a rule, as mh.EarlyStopping('loss', patience=3), "
                f"not {self.early_stopping!r}"
            )
        target = None if self.target is None else Target.read(self.target)
        object.__setattr__(self, "_target", target)
        self._check_target()

    def _check_target(self) -> None:
        known = self.value_names
        for what, rule in (
            (f"target {self.target!r}", self._target),
            (f"early_stopping={self.early_stopping}", self.early_stopping),
        ):
            if rule is None:
                continue
            if self.validation is None:
                raise ValueError(f"{what} needs validation data to be measured on")
            if rule.metric not in known:
                raise ValueError(f"{what} names no metric of this job; it has {', '.join(known)}")

    @property
    def value_names(self) -> list[str]:
        """The names of the values of an evaluation."""
        losses = [f"{name}_loss" for name in self.objective_names]
        names = [*(metric.name for metric in self._metrics), "loss", *losses]
        return names if self.ema is None else [*names, *(f"ema_{name}" for name in names)]

    @property
    def metric_objects(self) -> tuple[Metric, ...]:
        """The metrics, as objects; the first validation sample decides the default.

        Raises:
            ValueError: the job's target is not one of them.
        """
        if not self._settled:
            if not self._has_classes():
                object.__setattr__(self, "_metrics", ())
            object.__setattr__(self, "_settled", True)
            self._check_target()
        return self._metrics

    def _has_classes(self) -> bool:
        """Whether the targets of the validation data are integers, as class indices are."""
        if self.validation is None or not len(self.validation):
            return True
        try:
            _, targets = as_pair(fetch(self.validation, self.collate_fn, [0]))
        except TypeError:
            return True  # a sample that is no pair is refused where it is used
        kind = getattr(targets, "dtype", None)
        return kind is not None and not (kind.is_floating_point or kind.is_complex)

    @property
    def criterion(self) -> Callable[[Any, Any], Any]:
        """The loss or the objective, whichever was given."""
        given = self.loss if self.objective is None else self.objective
        if given is None:
            raise TypeError("the job has neither a loss nor an objective")
        if isinstance(given, Mapping):
            raise TypeError(
                "this needs a job with one loss or objective, got the objectives "
                + ", ".join(given)
            )
        return given

    @property
    def objective_names(self) -> tuple[str, ...]:
        """The names of several objectives, in the order of their steps; empty if there is one."""
        return tuple(self.objective) if isinstance(self.objective, Mapping) else ()

    @property
    def one_by_one(self) -> tuple[Job, ...]:
        """A job for each objective, with that one alone; this job itself if it has one."""
        if not isinstance(self.objective, Mapping):
            return (self,)
        return tuple(self.with_objective(one) for one in self.objective.values())

    def with_objective(self, objective: Objective | Mapping[str, Objective]) -> Job:
        """This job with another objective, or several, and all else as it is.

        Args:
            objective: what is to be computed in place of the job's objective.
        """
        one = copy(self)
        # Not checked again: a target may name the loss of an objective that is left out.
        object.__setattr__(one, "objective", objective)
        return one

    def make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer of a model; those of several objectives are combined into one.

        Args:
            model: what `Job.model` returned.

        Raises:
            TypeError: `optimizer` did not return an optimizer for each objective.
            ValueError: two optimizers have the same parameter.
        """
        return combine(self.optimizer(model), self.objective_names)

    def divide(self, batch: Any) -> tuple[Any, Any]:
        """The inputs and targets of a batch; the whole batch and None if there is an objective.

        Args:
            batch: what `collate_fn` returned.

        Raises:
            TypeError: there is no objective, and the batch is no pair.
        """
        return as_pair(batch) if self.objective is None else (batch, None)

    @property
    def streams(self) -> bool:
        """Whether the data is a stream."""
        return is_stream(self.data)

    @property
    def epoch_samples(self) -> int:
        """Samples of an epoch: those of the sampler, if there is one, or of the data.

        The epoch of a stream has no end.
        """
        if self.sampler is not None:
            return len(cast("Sized", self.sampler))
        return ENDLESS if self.streams else len(cast("Sized", self.data))

    @property
    def data_words(self) -> str:
        """The number of samples of the data, in words."""
        if self.streams:
            return "a stream"
        drawn = "" if self.sampler is None else f", of which an epoch draws {self.epoch_samples:,}"
        return f"{len(cast('Sized', self.data)):,}{drawn}"

    @property
    def goal(self) -> Target | None:
        """The target, as an object."""
        return self._target

    @property
    def batch_sizes(self) -> BatchSizes:
        """The global batch size, as a function of the samples dealt before the batch."""
        given, samples = self.global_batch, self.epoch_samples
        if not isinstance(given, Mapping):
            given = {0: given}
        return BatchSizes(tuple((round(at * samples), int(given[at])) for at in sorted(given)))

    @property
    def evaluation_points(self) -> EvaluationPoints:
        """Where evaluations are, by samples."""
        interval = self.evaluate_every
        if interval is None or interval.seconds is not None:
            return EvaluationPoints()
        if interval.epochs is not None:
            return EvaluationPoints(
                max(1, round(interval.epochs * self.epoch_samples)), epochs=False
            )
        return EvaluationPoints(interval.samples)

    @property
    def checkpoint_on_disk(self) -> Every | None:
        """When checkpoints are stored on the disk; None for never."""
        return None if self.checkpoint is None else self.checkpoint.on_disk

    @property
    def checkpoint_in_memory(self) -> Every | None:
        """When checkpoints are kept in memory; None for never."""
        return None if self.checkpoint is None else self.checkpoint.memory

    @property
    def checkpoint_points(self) -> EvaluationPoints | None:
        """Where checkpoints are, by samples; None if they are by time, or there are none."""
        return self._points(self.checkpoint_on_disk)

    @property
    def memory_points(self) -> EvaluationPoints | None:
        """Where checkpoints in memory are, by samples; None as above."""
        return self._points(self.checkpoint_in_memory)

    def _points(self, interval: Every | None) -> EvaluationPoints | None:
        if interval is None or interval.seconds is not None:
            return None
        if interval.epochs is not None:
            return EvaluationPoints(
                max(1, round(interval.epochs * self.epoch_samples)), epochs=False
            )
        if interval.steps is not None:
            return EvaluationPoints(interval.steps * self.batch_sizes.at(0), epochs=False)
        return EvaluationPoints(interval.samples, epochs=False)

    @property
    def evaluation_seconds(self) -> float | None:
        """Seconds from one evaluation to the next; None if the job has no such interval."""
        return self.evaluate_every.seconds if self.evaluate_every else None

    def lr_factor(self, dealt: int) -> float:
        """The factor of the learning rates in a step.

        Args:
            dealt: samples of the run before the step's global batch.

        Raises:
            TypeError: `lr_schedule` returned something else than a number.
            ValueError: `lr_schedule` returned a negative or an infinite number.
        """
        if self.lr_schedule is None:
            return 1.0
        epochs = dealt / max(1, self.epoch_samples)
        given = self.lr_schedule(epochs)
        if not hasattr(given, "__float__"):
            raise TypeError(f"lr_schedule must return a number, not {given!r}")
        factor = float(given)
        if not 0 <= factor < math.inf:
            raise ValueError(
                f"lr_schedule returned {factor} after {epochs:g} epochs; return 0 or more"
            )
        return factor

    @property
    def settings(self) -> dict[str, str]:
        """The fields that a run records, as text; `durability` only if it is not the default."""
        values = {name: getattr(self, name) for name in SETTINGS}
        if self.durability == "process":
            del values["durability"]
        values["measures"] = ", ".join(self.measures) or None
        return {
            name: _text(value)
            for name, value in values.items()
            if value is not None and value is not False
        }

    @property
    def batch_warning(self) -> str:
        """A warning if a global batch is more than the data; otherwise an empty string."""
        given = self.global_batch
        largest = max(given.values()) if isinstance(given, Mapping) else given
        if self.streams or largest <= self.epoch_samples:
            return ""
        return (
            f"global_batch {largest:,} is more than the {self.epoch_samples:,} samples of the "
            "data: every epoch is a single step, of all samples; give a smaller global_batch"
        )

    @property
    def budget(self) -> int | None:
        """Samples until the run ends, the lesser of `epochs` and `samples`; None without either."""
        limits = []
        if self.epochs is not None:
            limits.append(max(1, round(self.epochs * self.epoch_samples)))
        if self.samples is not None:
            limits.append(self.samples)
        return min(limits, default=None)

    def make_ready(self) -> None:
        """Call `prepare`, and the `prepare()` of datasets that have one: once per host."""
        if self.prepare is not None:
            self.prepare()
        for data in (self.data, self.validation):
            own = getattr(data, "prepare", None)
            if callable(own):
                own()


def _text(value: object) -> str:
    """A setting in words that are the same in every run: a function has none but its name."""
    if callable(value) and not isinstance(value, Value):
        return str(getattr(value, "__name__", type(value).__name__)).strip("<>")
    return str(dict(value)) if isinstance(value, Mapping) else str(value)
