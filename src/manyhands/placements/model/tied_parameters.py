"""Tied parameters: one tensor that several layers of a model use."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from manyhands.placements.model.materialize import aliases, tie

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn

    from manyhands.placements.model.tensor_plan import TensorPlan

_Layout = int | None
"""The dim along which a parameter is split; None if every worker has all of it."""


def keeping_ties(model: nn.Module, split: Callable[[], None]) -> None:
    """Split a model's layers, and keep tied parameters tied."""
    again = aliases(model)
    split()
    tie(model, again)


def without_torn(model: nn.Module, plan: TensorPlan) -> TensorPlan:
    """The plan without layers that share a parameter with layers that are split differently.

    A tied embedding stays split if the layer that it is tied to is split in the same way.
    """
    while torn := _torn(model, plan):
        why = {
            name: f"{parameter} is shared by {' and '.join(users)}, which are split differently"
            for parameter, users in torn.items()
            for name in users
        }
        kept = tuple(pair for pair in plan.pairs if not {*pair.columns, pair.row} & why.keys())
        gone = {
            name for pair in plan.pairs if pair not in kept for name in (*pair.columns, pair.row)
        }
        reason = next(iter(why.values()))
        plan = replace(
            plan,
            pairs=kept,
            embeddings=tuple(name for name in plan.embeddings if name not in why),
            logits=tuple(name for name in plan.logits if name not in why),
            whole={**plan.whole, **dict.fromkeys(gone, reason), **why},
        )
    return plan


def check_untorn(model: nn.Module, plan: TensorPlan) -> None:
    """Raise ValueError if a given plan splits the layers of a tied parameter differently."""
    for parameter, users in _torn(model, plan).items():
        raise ValueError(
            f"the plan splits {' and '.join(users)} differently, which share {parameter}: "
            "split all of them in the same way, or none"
        )


def check_owners(model: nn.Module, owners: Mapping[str, tuple[int, ...]]) -> None:
    """Raise ValueError if modules on different workers share a parameter.

    Its gradients would not be added.
    """
    placed = {id(model.get_submodule(module)): module for module in owners}
    seen: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first = seen.setdefault(id(parameter), name)
        one, other = _owner(model, first, placed), _owner(model, name, placed)
        together = owners.get(one, ()) == owners.get(other, ()) and len(owners.get(one, ())) == 1
        if one != other and not together:
            raise ValueError(
                f"{first} and {name} are one parameter, in {one or 'no placed module'} and "
                f"{other or 'no placed module'}: place both on the same worker, or the modules "
                "around them"
            )


def _owner(model: nn.Module, name: str, placed: Mapping[int, str]) -> str:
    """The placed module that contains a name, under any of its names; empty if there is none.

    A placed module that the model uses in two places is computed by its workers in both.
    """
    module = model
    for child in name.split(".")[:-1]:
        module = module.get_submodule(child)
        if id(module) in placed:
            return placed[id(module)]
    return ""


def _torn(model: nn.Module, plan: TensorPlan) -> dict[str, list[str]]:
    """Tied parameters whose layers the plan splits differently, each with its split layers."""
    layouts = _layouts(plan)
    users: dict[int, list[tuple[str, str]]] = {}
    names: dict[int, str] = {}
    # Each module once: a module that is used twice is split once.
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            users.setdefault(id(parameter), []).append((path, name))
            names.setdefault(id(parameter), f"{path}.{name}")
    torn = {}
    for number, some in users.items():
        if len({layouts.get(one) for one in some}) > 1:
            torn[names[number]] = [path for path, _ in some]
    return torn


def _layouts(plan: TensorPlan) -> dict[tuple[str, str], _Layout]:
    by_outputs = [name for pair in plan.pairs for name in pair.columns]
    found: dict[tuple[str, str], _Layout] = {
        (layer, name): 0
        for layer in (*by_outputs, *plan.embeddings, *plan.logits)
        for name in ("weight", "bias")
    }
    return found | {(pair.row, "weight"): 1 for pair in plan.pairs if pair.row}
