"""What a search reads from a job: its metric, where runs can be divided, what shapes the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from manyhands.script import loading as scripts
from manyhands.stopping import EarlyStopping

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from manyhands.free import FreeParameter
    from manyhands.job import Job

_MOST_CUTS = 4096
"""Places at which a run can be divided."""


def metric_of(job: Job, asked: str | None) -> tuple[str, bool]:
    """The name of the metric, and whether less of it is better."""
    if job.validation is None:
        raise ValueError("a search compares a validation metric: give the job validation data")
    known = ["loss", *(one.name for one in job.metric_objects)]
    mode, _, name = (asked or "").strip().rpartition(" ")
    if not name:
        target = job.goal
        if target is not None:
            return target.metric, target.better == "<="
        name = known[min(1, len(known) - 1)]
    if name not in known or mode not in ("", "min", "max"):
        raise ValueError(
            f"metric {asked!r} is none of the job's: {', '.join(known)}; min or max before it says "
            "what is better"
        )
    rule = EarlyStopping(name, mode=mode or None)  # type: ignore[arg-type]
    return name, rule.less_is_better


def cuts(job: Job) -> tuple[int, ...]:
    """Samples at which a run of a job can be divided: after its global batches, up to its end."""
    budget = job.budget
    if budget is None:
        return ()
    found, dealt = [], 0
    while dealt < budget:
        left = job.epoch_samples - dealt % job.epoch_samples
        dealt += min(job.batch_sizes.at(dealt), left, budget - dealt)
        found.append(dealt)
    if len(found) > _MOST_CUTS:
        step = len(found) / _MOST_CUTS
        found = [found[int((number + 1) * step) - 1] for number in range(_MOST_CUTS)]
        found[-1] = budget
    return tuple(found)


def shaping(source: Callable[..., Job], parameters: Mapping[str, FreeParameter]) -> frozenset[str]:
    """The parameters that decide the shapes of the model."""
    usual = _shapes(source, {})
    found = set()
    for name, one in parameters.items():
        for value in extremes(one):
            try:
                different = _shapes(source, {name: value}) != usual
            except Exception:  # noqa: BLE001 - it may not be possible with the others as they are
                different = True
            if different:
                found.add(name)
                break
    return frozenset(found)


def extremes(parameter: FreeParameter) -> list[Any]:
    """All values of a choice; of any other parameter the two ends of its range."""
    if hasattr(parameter, "values"):
        return list(parameter.values)
    if hasattr(parameter, "low"):
        return [parameter.low, parameter.high]  # type: ignore[attr-defined]
    return [[parameter.of.start] * length for length in (parameter.shortest, parameter.longest)]  # type: ignore[attr-defined]


def _shapes(source: Callable[..., Job], values: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    job = scripts.made(source, values)
    try:
        with torch.device("meta"):
            model = job.model()
    except Exception:  # noqa: BLE001 - it is created on its own device
        model = job.model()
    return {name: tuple(one.shape) for name, one in model.state_dict().items()}
