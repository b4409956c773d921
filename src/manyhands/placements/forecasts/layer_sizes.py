"""Sizes of the inputs and outputs of a model's layers, found without computing them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from manyhands.costs import LayerSize
from manyhands.parameters.initial.deferred import on_meta
from manyhands.placements.model.sample_batch import example
from manyhands.placements.tensor_sizes import sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn

    from manyhands.costs import TensorSize
    from manyhands.job import Job
    from manyhands.placements.model.tensor_plan import TensorPlan


def sizes_and_layers(
    job: Job, replicas: int, roles: Mapping[str, str], after: str = ""
) -> tuple[list[TensorSize], list[LayerSize]]:
    """Sizes of a job's parameters, and of its layers' calls for a replica's share of a batch."""
    one = example(job, 1)
    share = torch.empty(
        -(-job.batch_sizes.at(0) // replicas), *one.shape[1:], dtype=one.dtype, device="meta"
    )
    return sizes(on_meta(job.model)), inspect_layers(job.model, share, roles, after)


def inspect_layers(
    make: Callable[[], nn.Module],
    inputs: torch.Tensor,
    roles: Mapping[str, str],
    after: str = "",
) -> list[LayerSize]:
    """Sizes of the calls of modules that have a role, and of attention, in order.

    Args:
        make: creates the model; no memory is allocated for it.
        inputs: a batch, of which only the shape matters.
        roles: the role of each module, by name.
        after: the name of the first module whose calls, and those after it, are listed.
    """
    model = on_meta(make)
    found: list[LayerSize] = []
    if after:
        begins = model.get_submodule(after)

        def begin(*_: object) -> None:
            found.clear()
            hook.remove()

        hook = begins.register_forward_pre_hook(begin)
    for name, role in roles.items():
        model.get_submodule(name).register_forward_hook(_noting(name, role, found))
    with _NotingAttention(found):
        model(torch.empty_like(inputs, device="meta"))
    return found


def tensor_roles(
    make: Callable[[], nn.Module], find: Callable[[nn.Module], TensorPlan]
) -> dict[str, str]:
    """The roles of layers, by name, in a model that is split by the plan of `find`."""
    plan = find(on_meta(make))
    roles: dict[str, str] = dict.fromkeys(plan.embeddings, "table")
    for pair in plan.pairs:
        roles |= dict.fromkeys(pair.columns[:1], "column")
        roles |= dict.fromkeys(pair.columns[1:], "beside")
        roles |= {pair.row: "row"} if pair.row else {}
    return roles | dict.fromkeys(plan.logits, "logits")


def _noting(name: str, role: str, found: list[LayerSize]) -> Callable[..., None]:
    def note(_: nn.Module, given: tuple[Any, ...], came: torch.Tensor) -> None:
        first = given[0]
        found.append(
            LayerSize(name, role, first.nbytes, came.nbytes, came.shape[-1], first.requires_grad)
        )

    return note


class _NotingAttention(TorchFunctionMode):
    """Records the sizes of attention's queries, keys and values."""

    def __init__(self, found: list[LayerSize]) -> None:
        super().__init__()
        self._found = found

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Record the call if it is attention, then run it."""
        came = func(*args, **(kwargs or {}))
        if func is functional.scaled_dot_product_attention:
            given = sum(one.nbytes for one in args[:3])
            self._found.append(
                LayerSize("", "attention", given, came.nbytes, came.shape[-1], came.requires_grad)
            )
        return came
