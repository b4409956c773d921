"""Metrics that are exact whatever the number of workers.

A mean of per-batch means is wrong when batches differ in size, and a mean of per-batch F1 scores is
always wrong. So a metric here is two functions: `statistics` turns a batch into a few numbers that
may be *added*, over batches and over workers, in any order; `value` turns their sum into the
result. The same samples give the same value however they were split.

    >>> metric("accuracy"), metric("f1_micro")
    (Accuracy(), F1(average='micro'))
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, get_args, runtime_checkable

import torch

__all__ = ["F1", "Accuracy", "Better", "Metric", "PerSample", "PerSampleFunction", "metric"]

Better: TypeAlias = Literal["higher", "lower"]
PerSampleFunction: TypeAlias = Callable[[Any, Any], torch.Tensor]


@runtime_checkable
class Metric(Protocol):
    """The interface of a metric: a number that is computed from sums over samples.

    Any object with these four attributes is a metric; it need not derive from this class.

    Example:
        >>> import torch
        >>> import manyhands as mh
        >>> class MeanError:
        ...     name, better = "error", "lower"
        ...
        ...     def statistics(self, outputs, targets):
        ...         errors = (outputs - targets).abs().double()
        ...         return torch.stack([errors.sum(), torch.tensor(float(errors.numel()))])
        ...
        ...     def value(self, statistics):
        ...         total, count = statistics.tolist()
        ...         return total / count
        >>> isinstance(MeanError(), mh.Metric)
        True
    """

    @property
    def name(self) -> str:
        """The metric's name in reports and targets."""

    @property
    def better(self) -> Better:
        """The direction of an improvement."""

    def statistics(self, outputs: Any, targets: Any) -> torch.Tensor:
        """The numbers that a batch adds.

        Args:
            outputs: of the model.
            targets: of the samples.

        Returns:
            A float64 tensor of one dimension, always of the same size; zeros for an empty batch.
        """

    def value(self, statistics: torch.Tensor) -> float:
        """The metric of all samples whose statistics were summed.

        Args:
            statistics: the sum over all batches.

        Returns:
            The value; NaN if there were no samples.
        """


@dataclass(frozen=True)
class Accuracy:
    """The fraction of targets whose class has the largest output.

    Takes outputs `[N, classes, ...]` and class indices `[N, ...]`, as `F.cross_entropy` does; every
    position counts. Its statistics are the numbers of correct and of all targets.

    >>> accuracy = Accuracy()
    >>> accuracy.value(accuracy.statistics(torch.eye(4), torch.tensor([0, 1, 2, 2])))
    0.75
    """

    name: ClassVar[str] = "accuracy"
    better: ClassVar[Better] = "higher"

    def statistics(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The numbers of correct and of all targets."""
        predicted, actual = _classes(outputs, targets)
        correct = (predicted == actual).sum(dtype=torch.float64)
        return torch.stack([correct, torch.full_like(correct, actual.numel())])

    def value(self, statistics: torch.Tensor) -> float:
        """Correct targets over all targets."""
        correct, count = statistics.tolist()
        return _ratio(correct, count)


@dataclass(frozen=True)
class F1:
    """The harmonic mean of precision and recall: `2 tp / (2 tp + fp + fn)`.

    Takes what `Accuracy` takes. Its statistics are the true positives, false positives and false
    negatives of each class.

    Args:
        average: "macro" computes it per class and takes the mean over classes, each with the same
            weight. A class that never occurs and is never predicted has no F1 and is left out of
            the mean. "micro" computes it once from the counts of all classes together; with one
            class per target that is the accuracy.

    >>> f1 = F1()
    >>> f1.value(f1.statistics(torch.eye(3)[[0, 1, 1, 1]], torch.tensor([0, 0, 1, 1])))
    0.7333333333333334
    """

    average: Literal["macro", "micro"] = "macro"
    better: ClassVar[Better] = "higher"

    def __post_init__(self) -> None:
        if self.average not in ("macro", "micro"):
            raise ValueError(f"average must be 'macro' or 'micro', not {self.average!r}")

    @property
    def name(self) -> str:
        """`f1`, or `f1_micro`."""
        return "f1" if self.average == "macro" else "f1_micro"

    def statistics(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """True positives, false positives and false negatives: three numbers per class."""
        predicted, actual = _classes(outputs, targets)
        classes = outputs.shape[1]
        true = torch.bincount(actual[predicted == actual], minlength=classes)
        false = torch.bincount(predicted, minlength=classes) - true
        missed = torch.bincount(actual, minlength=classes) - true
        return torch.cat([true, false, missed]).to(torch.float64)

    def value(self, statistics: torch.Tensor) -> float:
        """The average over classes, or of all counts together."""
        counts = statistics.reshape(3, -1)
        if self.average == "micro":
            counts = counts.sum(dim=1, keepdim=True)
        true, false, missed = counts
        total = 2 * true + false + missed
        occurring = total > 0
        scores = (2 * true[occurring] / total[occurring]).tolist()
        return _ratio(math.fsum(scores), len(scores))


@dataclass(frozen=True)
class PerSample:
    """The mean over samples of a function that gives each sample a value.

    Args:
        name: what it is called in reports and targets.
        function: takes outputs and targets, gives a tensor `[N]`; a loss does so with
            `reduction="none"`.
        better: which direction is an improvement.

    >>> error = PerSample("error", lambda y, t: (y - t).abs(), better="lower")
    >>> error.value(error.statistics(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0])))
    0.5
    """

    name: str
    function: PerSampleFunction
    better: Better = "higher"

    def __post_init__(self) -> None:
        if self.better not in get_args(Better):
            raise ValueError(f"better must be 'higher' or 'lower', not {self.better!r}")

    def statistics(self, outputs: Any, targets: Any) -> torch.Tensor:
        """The sum of the values and their number."""
        values = self.function(outputs, targets).detach()
        if values.dim() != 1 or (torch.is_tensor(targets) and len(values) != len(targets)):
            raise ValueError(
                f"metric {self.name!r} gave a tensor of shape {list(values.shape)}; it must give "
                'one value per sample, [N] (a loss of torch does with reduction="none")'
            )
        total = values.sum(dtype=torch.float64)
        return torch.stack([total, torch.full_like(total, len(values))])

    def value(self, statistics: torch.Tensor) -> float:
        """The sum over the number."""
        total, count = statistics.tolist()
        return _ratio(total, count)


_NAMED: dict[str, Callable[[], Metric]] = {
    "accuracy": Accuracy,
    "f1": F1,
    "f1_micro": lambda: F1("micro"),
}


def metric(spec: str | Metric | PerSampleFunction) -> Metric:
    """The metric that a name, a metric or a function stands for.

    Args:
        spec: "accuracy", "f1" or "f1_micro"; a `Metric`, which is returned as it is; or a function
            of (outputs, targets) that returns a value per sample.

    Raises:
        ValueError: there is no metric of this name.
        TypeError: `spec` is something else, or a function without a name.

    >>> metric("f1")
    F1(average='macro')
    """
    if isinstance(spec, str):
        if spec not in _NAMED:
            nearest = difflib.get_close_matches(spec, _NAMED, n=1, cutoff=0)[0]
            raise ValueError(
                f"there is no metric {spec!r}; did you mean {nearest!r}? "
                f"Known are {', '.join(_NAMED)}; a function of (outputs, targets) that gives a "
                "value per sample is one too"
            )
        return _NAMED[spec]()
    if isinstance(spec, type):
        raise TypeError(f"{spec.__name__} is a class; give a metric of it, {spec.__name__}(...)")
    if isinstance(spec, Metric):
        return spec
    if not callable(spec):
        raise TypeError(f"a metric is a name, a Metric or a function, not {spec!r}")
    name = getattr(spec, "__name__", None)
    if name is None:
        raise TypeError(f"{spec!r} has no name of its own; give it one: PerSample(name, function)")
    return PerSample(name, spec)


def _classes(outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The predicted and the actual class of every target, each in one dimension."""
    if outputs.dim() < 2 or outputs.shape[:1] + outputs.shape[2:] != targets.shape:
        raise ValueError(
            f"outputs of shape {list(outputs.shape)} and targets of shape {list(targets.shape)} "
            "do not fit: outputs are [N, classes, ...] and targets are class indices [N, ...]"
        )
    if targets.is_floating_point():
        raise ValueError(f"targets must be class indices (integers), not {targets.dtype}")
    predicted, actual = outputs.argmax(dim=1).flatten(), targets.flatten()
    classes = outputs.shape[1]
    outside = actual[(actual < 0) | (actual >= classes)]
    if outside.numel():
        raise ValueError(f"a target is class {outside[0].item()}, of {classes} classes from 0")
    return predicted, actual


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan
