"""Work, depth and memory of a model's layers, found on the meta device: nothing is computed.

Every operation that PyTorch dispatches is counted for the module that it is called in. Each result
has a depth: the longest chain of operations from the inputs to it. So the depth of a network is
that of its longest path, and branches that do not depend on each other count as one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from manyhands.costs import LayerCost, NetworkCost, WorkDepth
from manyhands.costs.work_depth import attention
from manyhands.data.taking import preview
from manyhands.parameters.initial.deferred import on_meta
from manyhands.placements.forecasts.operation_costs import (
    is_creation,
    operation_cost,
    shares_memory,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from manyhands.job import Job

_KINDS: Final = {
    "torch.nn.modules.linear": "fully connected",
    "torch.nn.modules.conv": "convolution",
    "torch.nn.modules.pooling": "pooling",
    "torch.nn.modules.batchnorm": "normalisation",
    "torch.nn.modules.instancenorm": "normalisation",
    "torch.nn.modules.normalization": "normalisation",
    "torch.nn.modules.rnn": "recurrent",
    "torch.nn.modules.sparse": "embedding",
}
"""Kinds of layers by the file that PyTorch has them in."""


def job_network_cost(job: Job, samples: int | None = None) -> NetworkCost:
    """Work, depth and memory of the forward pass of a job's model.

    Args:
        job: the job.
        samples: samples of the batch; the job's first batch by default.

    Raises:
        ValueError: the model needs the content of tensors.
    """
    number = job.batch_sizes.at(0) if samples is None else samples

    def on_batch(one: Any) -> Any:
        if not isinstance(one, torch.Tensor):
            return one
        shape = (number, *one.shape[1:]) if one.dim() else one.shape
        return torch.empty(shape, dtype=one.dtype, device="meta")

    inputs, _ = job.divide(preview(job.data, job.collate_fn, 1))
    batch = tree_map(on_batch, inputs)
    objectives = [one.objective for one in job.one_by_one if callable(one.objective)]
    if not objectives:
        return network_cost(job.model, batch)
    # Of several objectives, one after the other.
    return network_cost(
        job.model, batch, call=lambda model, inputs: [one(model, inputs) for one in objectives]
    )


def network_cost(
    make: Callable[[], nn.Module],
    inputs: Any,
    *,
    call: Callable[[nn.Module, Any], Any] = lambda model, inputs: model(inputs),
) -> NetworkCost:
    """Work, depth and memory of the forward pass of a model, in training mode.

    Outputs are the floating-point results of operations, the first one of each; a mask, indices and
    statistics that are kept for the backward pass are not counted.

    Args:
        make: creates the model; no memory is allocated for it.
        inputs: what the model is called with; tensors are on the meta device.
        call: calls the model, by default with `inputs` alone.

    Raises:
        ValueError: the model needs the content of tensors.

    >>> found = network_cost(lambda: nn.Linear(800, 10), torch.empty(4, 800, device="meta"))
    >>> found.cost
    WorkDepth(work=64000, depth=11)
    """
    model = on_meta(make)
    counting = _Counting(model)
    try:
        with torch.no_grad(), torch.device("meta"), counting, _WholeAttention(counting):
            call(model, inputs)
    except (NotImplementedError, RuntimeError) as error:
        if "meta" not in str(error):
            raise
        raise ValueError(
            "work and depth are counted without the content of tensors, which the model needs: "
            f"{error}"
        ) from error
    finally:
        counting.detach()
    return counting.result()


class _State(NamedTuple):
    """A tensor as a result."""

    depth: int = 0
    learns: bool = False
    """Whether a gradient flows to it."""
    row: tuple[str, str] = ("", "")
    """The layer that computed it."""
    within: int = 0
    """Its depth from the inputs of that layer."""


@dataclass
class _Stored:
    """States of the tensors in one storage."""

    whole: _State
    parts: dict[tuple[Any, ...], _State] = field(default_factory=dict)
    """Of parts that were written in place: by offset, sizes and strides."""

    def read(self, tensor: torch.Tensor) -> Iterable[_State]:
        """The states that a tensor depends on."""
        offset, *shape = _part(tensor)
        yield self.whole
        for (begin, *other), state in self.parts.items():
            # Parts of one shape at different offsets are chunks, which do not overlap.
            if begin == offset or other != shape:
                yield state


@dataclass
class _Row:
    """What a layer has so far."""

    work: int = 0
    depth: int = 0
    outputs: int = 0
    output_gradients: int = 0


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Counts the operations of a model's modules."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.is_paused = False
        self._model = model
        self._inside: list[tuple[str, nn.Module]] = [("", model)]
        self._rows: dict[tuple[str, str], _Row] = {}
        self._assumed: dict[str, None] = {}
        self._depth = 0
        self._states: dict[int, _Stored] = {}
        self._weights: set[int] = set()
        for parameter in model.parameters():
            key = parameter.untyped_storage()._cdata
            self._weights.add(key)
            self._states[key] = _Stored(_State(learns=parameter.requires_grad))
        self._hooks = [
            hook
            for name, module in model.named_modules()
            for hook in (
                module.register_forward_pre_hook(self._entering(name)),
                module.register_forward_hook(self._leaving, always_call=True),
            )
        ]

    def detach(self) -> None:
        """Remove the hooks from the model."""
        for hook in self._hooks:
            hook.remove()

    def _entering(self, name: str) -> Callable[..., None]:
        return lambda module, _: self._inside.append((name, module))

    def _leaving(self, *_: object) -> None:
        self._inside.pop()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Count the operation, then run it."""
        came = func(*args, **(kwargs or {}))
        if self.is_paused:
            return came
        results = [one for one in tree_leaves(came) if isinstance(one, torch.Tensor)]
        read = () if is_creation(func) else (args, kwargs)
        given = [one for one in tree_leaves(read) if isinstance(one, torch.Tensor)]
        if results:
            kind, cost, is_known = operation_cost(func, args, results[0])
            if not is_known:
                self._assumed[func._schema.name] = None
            kind = self._kind(kind, given)
            self.note(kind, cost, given, results, is_new=not shares_memory(func))
        return came

    def _kind(self, kind: str, given: Iterable[torch.Tensor]) -> str:
        """The kind of layer that an operation is part of."""
        if kind == "matrix product" and any(_key(one) in self._weights for one in given):
            kind = "fully connected"
        module = self._inside[-1][1]
        if isinstance(module, nn.MultiheadAttention):
            return kind if kind == "fully connected" else "attention"
        files = (base.__module__ for base in type(module).__mro__)
        return next((_KINDS[file] for file in files if file in _KINDS), kind)

    def note(
        self,
        kind: str,
        cost: WorkDepth,
        given: Iterable[torch.Tensor],
        results: Iterable[torch.Tensor],
        *,
        is_new: bool = True,
    ) -> None:
        """Add an operation to the layer that it is called in."""
        label = (self._inside[-1][0], kind)
        given = tuple(given)
        sources = [
            state
            for one in given
            if _key(one) in self._states
            for state in self._states[_key(one)].read(one)
        ]
        begin = max((state.depth for state in sources), default=0)
        inside = max((state.within for state in sources if state.row == label), default=0)
        learns = any(state.learns for state in sources)
        if cost.work:
            state = _State(begin + cost.depth, learns, label, inside + cost.depth)
        else:  # what is only moved is still the result of its layer
            state = max(sources, key=lambda one: one.depth, default=_State())
            state = state._replace(learns=learns)
        self._depth = max(self._depth, state.depth)
        known = {_key(one) for one in given}
        first = True
        for one in results:
            created = is_new and _key(one) not in known
            if created and first and given and one.is_floating_point():
                row = self._rows.setdefault(label, _Row())
                row.outputs += one.nbytes
                row.output_gradients += one.nbytes if learns else 0
            first = False
            if _key(one) not in known:
                self._states[_key(one)] = _Stored(state)
            elif cost.work:
                self._write(one, state)
        if cost.work:
            row = self._rows.setdefault(label, _Row())
            row.work += cost.work
            row.depth = max(row.depth, state.within)

    def _write(self, tensor: torch.Tensor, state: _State) -> None:
        """A result that was written in place."""
        stored = self._states.setdefault(_key(tensor), _Stored(state))
        if tensor.nbytes == tensor.untyped_storage().nbytes():
            stored.whole = state
            stored.parts.clear()
        else:
            stored.parts[_part(tensor)] = state

    def result(self) -> NetworkCost:
        """The layers so far."""
        weights: dict[str, tuple[int, int]] = {}
        for name, parameter in self._model.named_parameters():
            layer = name.rpartition(".")[0]
            held, learned = weights.get(layer, (0, 0))
            own = parameter.nbytes
            weights[layer] = (held + own, learned + (own if parameter.requires_grad else 0))
        layers = []
        for (name, kind), row in self._rows.items():
            held, learned = weights.pop(name, (0, 0))
            cost = WorkDepth(row.work, row.depth)
            layers.append(
                LayerCost(name, kind, cost, held, learned, row.outputs, row.output_gradients)
            )
        for name, (held, learned) in weights.items():
            layers.append(LayerCost(name, "not called", WorkDepth(), held, learned))
        total = WorkDepth(sum(layer.cost.work for layer in layers), self._depth)
        parameters = sum(one.numel() for one in self._model.parameters())
        return NetworkCost(tuple(layers), total, parameters, tuple(self._assumed))


class _WholeAttention(TorchFunctionMode):
    """Counts attention as one operation, whatever the device computes it by."""

    def __init__(self, counting: _Counting) -> None:
        super().__init__()
        self._counting = counting

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Count the call if it is attention."""
        kwargs = kwargs or {}
        if func is not functional.scaled_dot_product_attention or self._counting.is_paused:
            return func(*args, **kwargs)
        self._counting.is_paused = True
        try:
            came = func(*args, **kwargs)
        finally:
            self._counting.is_paused = False
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        given = dict(zip(names, args, strict=False)) | kwargs
        query, key, value = given["query"], given["key"], given["value"]
        masked = given.get("attn_mask") is not None or bool(given.get("is_causal"))
        queries, keys = query.shape[-2], key.shape[-2]
        heads = query.shape[:-2].numel()
        cost = attention(heads, queries, keys, query.shape[-1], value.shape[-1], masked)
        self._counting.note("attention", cost, (query, key, value), (came,))
        return came


def _key(tensor: torch.Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key


def _part(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride())
