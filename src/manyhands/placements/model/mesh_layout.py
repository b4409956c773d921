"""Distribution of a model over the axes of a device mesh."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from manyhands.engine.sharding import shard
from manyhands.engine.tensor_parallel import split
from manyhands.parameters.module_units import separate_units
from manyhands.placements.model.tensor_plan import TensorPlan, find_plan, given_plan
from manyhands.placements.model.tied_parameters import check_untorn, keeping_ties, without_torn

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from manyhands.transport.mesh import Mesh


def distribute(
    model: nn.Module, mesh: Mesh, plan: TensorPlan, reduced_as: str | None = None
) -> None:
    """Split the model's layers along `tensor`, then shard it along `data` and `shard`.

    Args:
        model: the model, on any device, including meta.
        mesh: a mesh with these three axes; axes of length one have no effect.
        plan: the layers to split along `tensor`.
        reduced_as: name of the dtype in which gradients are reduced; their own by default.
    """
    _split(model, mesh, plan)
    if mesh.axes["data"] * mesh.axes["shard"] > 1:
        shard(
            model,
            separate_units(model),
            _sharing(mesh),
            reshard_after_forward=True,
            reduced_as=reduced_as,
        )


@dataclass(frozen=True, eq=False)
class Division:
    """Further division of pipeline stages, along the axes `tensor` and `shard`."""

    mesh: Mesh
    find: Callable[[nn.Module], TensorPlan]
    """Finds the layers of a model that are split along `tensor`."""

    def split(self, model: nn.Module, plan: TensorPlan) -> None:
        """Split a model along `tensor`, on any device, including meta."""
        _split(model, self.mesh, plan)

    def shard(self, stages: Iterable[nn.Module], loose: Collection[str]) -> None:
        """Shard each stage along `shard` as one unit, gathered once for all microbatches.

        Gathering it for every microbatch would send its parameters twice for each
        (`docs/decisions/0032-divided-stages.md`).

        Args:
            stages: this worker's stages.
            loose: parameters that belong to no layer, and are not sharded.
        """
        if self.mesh.axes["shard"] == 1:
            return
        for stage in stages:
            whole = [one for name, one in stage.named_parameters() if name in loose]
            shard(
                stage, [stage], _sharing(self.mesh), reshard_after_forward=False, left_alone=whole
            )


def _split(model: nn.Module, mesh: Mesh, plan: TensorPlan) -> None:
    if mesh.axes["tensor"] > 1:
        keeping_ties(
            model,
            lambda: split(
                model,
                mesh.handle["tensor"],
                columns=[pair.columns for pair in plan.pairs],
                rows=[pair.row for pair in plan.pairs if pair.row],
                tables=plan.embeddings,
                gathered=plan.logits,
            ),
        )


def _sharing(mesh: Mesh) -> DeviceMesh:
    """The submesh of the axes `shard` and, if there are replicas, `data`."""
    return mesh.handle["data", "shard"] if mesh.axes["data"] > 1 else mesh.handle["shard"]


def inseparable(model: nn.Module, plan: TensorPlan) -> list[tuple[str, ...]]:
    """Groups of layers that must stay in one stage, because activations between them are split.

    In a given plan, columns belong to the next row in the model.
    """
    found = [(*pair.columns, pair.row) for pair in plan.pairs if pair.columns and pair.row]
    columns = {name for pair in plan.pairs if not pair.row for name in pair.columns}
    rows = {pair.row for pair in plan.pairs if not pair.columns}
    begun: list[str] = []
    for name, _ in model.named_modules():
        if name in columns | rows:
            begun.append(name)
        if name in rows:
            found.append(tuple(begun))
            begun = []
    return found


def plan_of(model: nn.Module, ways: int, lines: Sequence[str], strategy: str) -> TensorPlan:
    """The given plan, or one that is found.

    Raises:
        ValueError: there is nothing to split; the message says why, layer by layer.
    """
    if ways == 1:
        return TensorPlan()
    if lines:
        plan = given_plan(model, lines)
        check_untorn(model, plan)
    else:
        plan = without_torn(model, find_plan(model, ways))
    if plan.pairs or lines:
        return plan
    reasons = "; ".join(f"{name}: {why}" for name, why in list(plan.whole.items())[:4])
    raise ValueError(
        f"{strategy} found no layers to split in {type(model).__name__}: "
        f"{reasons or 'it has no linear layer'}. "
        'Use fully_sharded(), or name layers: plan=["*.up column", "*.down row"]'
    )
