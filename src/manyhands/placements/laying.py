"""Laying a model out over the axes of a mesh."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.engine.sharding import shard
from manyhands.engine.tensor_parallel import split
from manyhands.parameters.blocks import units
from manyhands.placements.plans import Plan, find_plan, given_plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from manyhands.transport.mesh import Mesh


def lay_out(model: nn.Module, mesh: Mesh, plan: Plan) -> None:
    """Split the model's layers along `tensor`, then shard what is left along `data` and `shard`.

    Args:
        model: on any device, the meta device included.
        mesh: with these three axes; those of length one do nothing.
        plan: what is split along `tensor`.
    """
    if mesh.axes["tensor"] > 1:
        split(
            model,
            mesh.handle["tensor"],
            columns=[pair.columns for pair in plan.pairs],
            rows=[pair.row for pair in plan.pairs if pair.row],
            tables=plan.embeddings,
            gathered=plan.logits,
        )
    if mesh.axes["data"] * mesh.axes["shard"] > 1:
        axes = mesh.handle["data", "shard"] if mesh.axes["data"] > 1 else mesh.handle["shard"]
        shard(model, units(model), axes, give_back=True)


def plan_of(model: nn.Module, ways: int, lines: Sequence[str], strategy: str) -> Plan:
    """The plan that was given or is found.

    Raises:
        ValueError: there is nothing to split; the message says why, layer by layer.
    """
    if ways == 1:
        return Plan()
    plan = given_plan(model, lines) if lines else find_plan(model, ways)
    if plan.pairs or lines:
        return plan
    reasons = "; ".join(f"{name}: {why}" for name, why in list(plan.whole.items())[:4])
    raise ValueError(
        f"{strategy} finds nothing to split in {type(model).__name__}; "
        f"{reasons or 'it has no linear layer'}. "
        'Use fully_sharded(), or name layers: plan=["*.up column", "*.down row"]'
    )
