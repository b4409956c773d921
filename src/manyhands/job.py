"""What to train: a `Job`, which says nothing about how or where."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    Protocol,
    TypeAlias,
    cast,
    get_args,
    runtime_checkable,
)

import torch
from torch import nn

from manyhands.data.taking import as_pair, fetch
from manyhands.intervals import Every
from manyhands.metrics import Metric, metric
from manyhands.notation import Value
from manyhands.notation.error import unknown
from manyhands.sampling.batches import BatchSizes, EvaluationPoints
from manyhands.stopping import EarlyStopping, Target

if TYPE_CHECKING:
    from torch.optim.lr_scheduler import LRScheduler

    from manyhands.callbacks import Callback
    from manyhands.lr_schedules import LRSchedule
    from manyhands.objective import Objective

Loss: TypeAlias = Callable[[Any, Any], torch.Tensor]
"""`loss(outputs, targets)`: the mean over the samples of a batch."""

Durability: TypeAlias = Literal["none", "process", "host", "power"]
"""The failures that acknowledged updates survive: see `Job.durability`."""

MEASURES = ("spread", "gradient_norm", "staleness")
"""What a run can record at evaluations beside metrics."""
SETTINGS = (
    *("epochs", "samples", "seconds", "target", "early_stopping", "seed", "global_batch"),
    *("lr_schedule", "lr_scheduler", "clip"),
    *("evaluate_every", "measures", "micro_batch", "autocast", "activation_checkpointing"),
    "durability",
)
"""The fields of a job that a run records."""


@runtime_checkable
class SizedData(Protocol):
    """A map-style dataset: `len(data)` samples, of which `data[index]` is one.

    Example:
        >>> import torch
        >>> import manyhands as mh
        >>> isinstance(torch.utils.data.TensorDataset(torch.ones(8, 2)), mh.SizedData)
        True
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class Job:
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

    model: Callable[[], nn.Module]
    """Returns a new model: its class, or a function without arguments."""
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    """Returns the optimizer of a model: `lambda model: SGD(model.parameters(), lr=0.1)`."""
    loss: Loss | None = None
    """`loss(outputs, targets)`: the mean over the samples of a batch."""
    objective: Objective | None = None
    """In place of a loss: `objective(model, batch)`, which returns the mean loss over the samples
    of a batch of any form, or `mh.Weighted(total, weight)` where the mean is over something else,
    such as tokens. `model` is to be called; its attributes are those of the model."""
    data: SizedData
    """Samples `(input, target)`, or of any form with an objective: any map-style dataset."""
    validation: SizedData | None = None
    """Samples on which the loss and the metrics are computed after every epoch."""
    evaluate_every: Every | None = None
    """When to evaluate: `mh.every(samples=5000)` or `mh.every(seconds=10)` in addition to the end
    of every epoch, `mh.every(epochs=0.25)` in place of it. It follows the batch that completes the
    interval. Default: after every epoch. The last evaluation is at the end of the run."""
    measures: Sequence[str] = ()
    """What to record of the training beside the loss, at every evaluation: "gradient_norm",
    "spread" (the distance between replicas), "staleness"; see docs/meanings.md. Each costs time
    only if it is named."""
    metrics: str | Metric | Sequence[str | Metric | Callable[[Any, Any], torch.Tensor]] | None = (
        None
    )
    """One or several of: a name ("accuracy", "f1"), a `Metric`, or a function of (outputs, targets)
    that returns a value per sample. The loss is always computed too, as `loss`. Default:
    "accuracy" if the targets of the validation data are integers, otherwise the loss alone, as
    with an objective. An objective with metrics returns `mh.Weighted` with outputs and targets."""
    global_batch: int | Mapping[float, int]
    """Samples in one step of all workers together, whatever their number; {0: 128, 2: 512} grows
    it to 512 after 2 epochs."""
    lr_schedule: LRSchedule | Callable[[float], float] | None = None
    """Learning-rate schedule: a function from epochs (a fraction is possible) to the factor that
    the optimizer's learning rates are multiplied by, as `torch.optim.lr_scheduler.LambdaLR` takes:
    `mh.lr_schedules.cosine(10, warmup=0.5)`, or a function of your own."""
    lr_scheduler: Callable[[torch.optim.Optimizer], LRScheduler] | None = None
    """In place of `lr_schedule`: returns a scheduler of `torch.optim.lr_scheduler` for an
    optimizer, `lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=1000)`. It is stepped once
    per global batch of all workers together, so it means the same on any number of workers."""
    scheduler_interval: Literal["step", "epoch"] = "step"
    """When `lr_scheduler` is stepped: after every global batch, or after every epoch."""
    clip: float | None = None
    """Maximum norm of the gradient over all parameters, as in
    `torch.nn.utils.clip_grad_norm_`; None does not clip."""
    micro_batch: int | None = None
    """Samples per forward and backward pass of a worker. If its part of the global batch is
    larger, gradients are accumulated over several passes."""
    autocast: Literal["bfloat16"] | None = None
    """Compute outputs and losses under `torch.autocast` in this type; parameters, gradients and
    optimizer state keep their own."""
    activation_checkpointing: bool = False
    """Keep only the inputs of each block of the model, and recompute its activations in the
    backward pass (`torch.utils.checkpoint`): less memory, about a third more computation."""
    epochs: float | None = None
    """Stop after this many passes over the data; a fraction is allowed."""
    samples: int | None = None
    """Stop after this many samples."""
    seconds: float | None = None
    """Stop after this many seconds of training, evaluations included."""
    target: str | None = None
    """Stop when a validation metric reaches a value: "accuracy >= 0.98"."""
    early_stopping: EarlyStopping | None = None
    """Stop when a validation metric has not improved for some evaluations:
    `mh.EarlyStopping("loss", patience=3)`."""
    stop_on_nan: bool = True
    """End the run as failed when a training loss, a validation loss or a final parameter is NaN or
    infinite. With False the run continues, and its summary reports it."""
    callbacks: Sequence[Callback] = ()
    """Called in the process that started the run, while it trains: `mh.callbacks.CSVLogger()`, or
    callbacks of your own."""
    seed: int = 0
    """Determines the initial parameters and the order of the samples."""
    prepare: Callable[[], object] | None = None
    """Called once per host before any worker starts: downloads, unpacking."""
    collate_fn: Callable[[list[Any]], Any] | None = None
    """Merges a list of samples into a batch, as the `collate_fn` of a `DataLoader`."""
    num_workers: int = 0
    """Data-loading processes of each worker, as the `num_workers` of a `DataLoader`; 0 loads in
    the worker's own process."""
    durability: Durability = "process"
    """What the parameter servers' acknowledged updates survive: "none" nothing, "process" the death
    of any server or worker process, "power" a loss of power too, at the price of a disk write per
    update."""

    _metrics: tuple[Metric, ...] = field(init=False, repr=False)
    _settled: bool = field(init=False, repr=False, compare=False)
    _target: Target | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._check_data()
        self._check_callbacks()
        self._check_limits()
        self._check_evaluations()
        self._check_batch()
        self._check_rate()
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

    def _check_callbacks(self) -> None:
        for one in self.callbacks:
            if not hasattr(one, "on_evaluation"):
                raise TypeError(
                    "callbacks must be objects with the methods of mh.callbacks.Callback, "
                    f"got {one!r}"
                )

    def _check_data(self) -> None:
        for name in ("data", "validation"):
            data = getattr(self, name)
            if not isinstance(data, SizedData) and (name == "data" or data is not None):
                raise TypeError(
                    f"{name} of type {type(data).__name__} has no length or no items; "
                    "give a map-style dataset (__len__ and __getitem__)"
                )
        if (self.loss is None) == (self.objective is None):
            raise TypeError(
                "give the job one of loss=loss(outputs, targets) and objective=objective(model, "
                f"batch), got {'neither' if self.loss is None else 'both'}"
            )
        computes = "loss" if self.objective is None else "objective"
        for name in ("model", "optimizer", computes):
            if not callable(getattr(self, name)):
                raise TypeError(
                    f"{name} must be something to call (a class or a function), "
                    f"not {getattr(self, name)!r}"
                )
        if isinstance(self.model, nn.Module):
            raise TypeError(
                f"model is a {type(self.model).__name__} already; give what makes one (its class, "
                "or lambda: ...), because every worker makes its own"
            )

    def _check_limits(self) -> None:
        for name in ("samples", "num_workers", "seed", "micro_batch"):
            value = getattr(self, name)
            if value is not None:
                _check_whole(name, value)
        limits = {"epochs": self.epochs, "samples": self.samples, "seconds": self.seconds}
        for name, limit in limits.items():
            if limit is not None and not 0 < limit < math.inf:
                raise ValueError(f"{name} must be above 0, not {limit}")
        if self.target is None and all(limit is None for limit in limits.values()):
            raise ValueError("say when to stop: give epochs, samples, seconds or target")
        if self.num_workers < 0:
            raise ValueError(f"num_workers must be 0 or more, not {self.num_workers}")
        if self.micro_batch is not None and self.micro_batch < 1:
            raise ValueError(f"micro_batch must be at least 1 sample, not {self.micro_batch}")
        if self.autocast not in (None, "bfloat16"):
            raise ValueError(f'autocast must be "bfloat16" or None, not {self.autocast!r}')
        if self.durability == "host":
            raise ValueError(
                'durability="host" needs parameter servers on a second host, and all servers of a '
                'run are on its first: use "power", and a run folder on a disk that outlives the '
                "host"
            )
        if self.durability not in get_args(Durability):
            raise ValueError(
                f'durability must be "none", "process" or "power", not {self.durability!r}'
            )
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise ValueError(f"clip must be a norm above 0, not {self.clip}")

    def _check_evaluations(self) -> None:
        given = self.measures
        names = tuple(given.replace(",", " ").split() if isinstance(given, str) else given)
        object.__setattr__(self, "measures", names)
        for name in names:
            if name not in MEASURES:
                raise ValueError(unknown(f"there is no measure {name!r}", name, MEASURES))
        if names and self.validation is None:
            raise ValueError(
                f"measures={names!r} are recorded at evaluations: give validation data"
            )
        if self.evaluate_every is None:
            return
        if not isinstance(self.evaluate_every, Every):
            raise TypeError(
                "evaluate_every must be an interval, as in mh.every(samples=5000), "
                f"not {self.evaluate_every!r}"
            )
        if self.validation is None:
            raise ValueError(f"evaluate_every={self.evaluate_every!r} needs validation data")

    def _check_batch(self) -> None:
        given = self.global_batch
        if not isinstance(given, Mapping):
            given = {0: given}
        elif 0 not in given:
            raise ValueError(
                f"global_batch {given} does not say how large it is at first: {{0: …}}"
            )
        for epochs, size in cast("Mapping[Any, Any]", given).items():
            if not hasattr(epochs, "__float__") or not 0 <= epochs < math.inf:
                raise ValueError(
                    f"global_batch cannot change after {epochs!r} epochs; give numbers"
                )
            _check_whole("global_batch", size)
            if size < 1:
                raise ValueError(f"global_batch must be at least 1, not {size}")

    def _check_rate(self) -> None:
        if self.lr_schedule is not None and not callable(self.lr_schedule):
            raise TypeError(
                "lr_schedule must be a function from epochs to a factor of the learning "
                f"rate, as mh.lr_schedules.cosine(10), not {self.lr_schedule!r}; the learning "
                "rate itself is the optimizer's, and docs/meanings.md translates torch's schedulers"
            )
        if self.lr_schedule is not None and self.lr_scheduler is not None:
            raise TypeError("give the job one of lr_schedule and lr_scheduler, got both")
        if self.lr_scheduler is not None and not callable(self.lr_scheduler):
            raise TypeError(
                "lr_scheduler must be a function that returns a scheduler for an optimizer, "
                f"as lambda optimizer: StepLR(optimizer, 30), not {self.lr_scheduler!r}"
            )
        if self.scheduler_interval not in ("step", "epoch"):
            raise ValueError(
                f'scheduler_interval must be "step" or "epoch", not {self.scheduler_interval!r}'
            )
        self.lr_factor(0)

    def _check_target(self) -> None:
        known = [*(metric.name for metric in self._metrics), "loss"]
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
        return given

    def divide(self, batch: Any) -> tuple[Any, Any]:
        """The inputs and targets of a batch; the whole batch and None if there is an objective.

        Args:
            batch: what `collate_fn` returned.

        Raises:
            TypeError: there is no objective, and the batch is no pair.
        """
        return as_pair(batch) if self.objective is None else (batch, None)

    @property
    def goal(self) -> Target | None:
        """The target, as an object."""
        return self._target

    @property
    def batch_sizes(self) -> BatchSizes:
        """The global batch size, as a function of the samples dealt before the batch."""
        given, samples = self.global_batch, len(self.data)
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
            return EvaluationPoints(max(1, round(interval.epochs * len(self.data))), epochs=False)
        return EvaluationPoints(interval.samples)

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
        epochs = dealt / max(1, len(self.data))
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
    def budget(self) -> int | None:
        """Samples until the run ends, the lesser of `epochs` and `samples`; None without either."""
        limits = []
        if self.epochs is not None:
            limits.append(max(1, round(self.epochs * len(self.data))))
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


def _check_whole(name: str, value: object) -> None:
    if not hasattr(value, "__index__"):
        raise TypeError(f"{name} must be a whole number, an int, not {value!r}")


def _text(value: object) -> str:
    """A setting in words that are the same in every run: a function has none but its name."""
    if callable(value) and not isinstance(value, Value):
        return str(getattr(value, "__name__", type(value).__name__)).strip("<>")
    return str(dict(value)) if isinstance(value, Mapping) else str(value)
