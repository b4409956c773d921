"""Several optimizers of one job, each over parameters of its own, as one optimizer.

A job with several objectives has an optimizer for each. Servers, schedulers and checkpoints deal
with parameter groups and states, whichever optimizer they belong to, so they get one optimizer
that has the groups and the states of all. A step is taken with one of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn


class SeveralOptimizers(torch.optim.Optimizer):
    """The optimizers of several objectives, with the parameter groups and states of all.

    Servers, journals and schedulers deal with groups and states only, so to them it is one
    optimizer (`docs/decisions/0064-several-objectives.md`).

    Args:
        optimizers: by objective, an optimizer over parameters that no other one has.

    Raises:
        ValueError: two of them have the same parameter.
    """

    def __init__(self, optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
        _check_disjoint(optimizers)
        self.optimizers = tuple(optimizers.values())
        groups = [group for one in self.optimizers for group in one.param_groups]
        defaults: dict[str, Any] = {}
        for one in reversed(self.optimizers):
            defaults |= one.defaults
        # Copies: what is missing in a group is set to the default of another optimizer.
        super().__init__([dict(group) for group in groups], defaults)
        self.param_groups = groups
        self.state = defaultdict(dict)
        for one in self.optimizers:
            self.state.update(one.state)
            one.state = self.state

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Step all of them."""
        if closure is not None:
            raise TypeError("several optimizers cannot be stepped with one closure")
        for one in self.optimizers:
            one.step()


def parts_of(optimizer: torch.optim.Optimizer) -> tuple[torch.optim.Optimizer, ...]:
    """The optimizers of all objectives; the optimizer itself if there is one."""
    return optimizer.optimizers if isinstance(optimizer, SeveralOptimizers) else (optimizer,)


def combine(made: object, objectives: Sequence[str]) -> torch.optim.Optimizer:
    """What a job's `optimizer` returned, as one optimizer.

    Args:
        made: what it returned.
        objectives: the names of the job's objectives; empty if it has one without a name.

    Raises:
        TypeError: it is neither an optimizer, nor one for each objective.
        ValueError: two optimizers have the same parameter.
    """
    if not objectives:
        if isinstance(made, (Mapping, list, tuple)):
            raise TypeError(
                f"optimizer(model) must return an optimizer, got a {type(made).__name__}; several "
                "optimizers need an objective each: objective={...}"
            )
        # Whatever has parameter groups, and steps: not all optimizers are torch's.
        return cast("torch.optim.Optimizer", made)
    wanted = ", ".join(repr(name) for name in objectives)
    if not isinstance(made, Mapping) or set(made) != set(objectives):
        got = (
            "those of " + ", ".join(map(repr, made))
            if isinstance(made, Mapping)
            else type(made).__name__
        )
        raise TypeError(
            f"optimizer(model) must return a dict with an optimizer for each of the objectives "
            f"{wanted}, got {got}"
        )
    for name, one in made.items():
        if not hasattr(one, "param_groups"):
            raise TypeError(
                f"optimizer(model)[{name!r}] must be an optimizer, got {type(one).__name__}"
            )
    return SeveralOptimizers({name: made[name] for name in objectives})


class TrainedParameters:
    """The parameters that each objective trains.

    Args:
        model: the model.
        optimizer: the optimizers of all objectives.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._all = [one for one in model.parameters() if one.requires_grad]
        self._of = [
            {id(one) for group in each.param_groups for one in group["params"]}
            for each in parts_of(optimizer)
        ]

    def choose(self, objective: int | None) -> None:
        """Let gradients be computed for the parameters of one objective, or for all again."""
        for one in self._all:
            one.requires_grad_(objective is None or id(one) in self._of[objective])


def _check_disjoint(optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
    owner: dict[int, str] = {}
    for name, one in optimizers.items():
        for group in one.param_groups:
            for parameter in group["params"]:
                other = owner.setdefault(id(parameter), name)
                if other != name:
                    raise ValueError(
                        f"the optimizers of {other!r} and {name!r} share a parameter of shape "
                        f"{list(parameter.shape)}: each objective steps parameters of its own"
                    )
