"""Gradients of linear layers from the factors of all workers.

The weight of a linear layer is taken out of DDP and out of autograd: the layer computes with a
detached weight, and what its gradient is made of, inputs X and output gradients G, is noted in the
backward pass, however often and in whatever shape the layer is called. As soon as a layer has
noted as many gradients as it was called, workers exchange its number of rows, then the rows if
that is fewer bytes than an allreduce of the gradient, or else the gradient.

A gradient that reaches the weight on another way, as when a loss contains its norm, is computed by
autograd as usual, and averaged whole after the backward pass.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from manyhands.placements.compression.exchange import aligned
from manyhands.placements.compression.factored_linear import DTYPES, WHOLE, FactoredLinear

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from manyhands.codecs.reducers import Factors
    from manyhands.placements.compression.exchange import Exchange


def factored_layers(model: nn.Module) -> dict[str, nn.Linear]:
    """The linear layers whose weights can be exchanged as factors, by the weights' names.

    A weight that several modules share has gradients of all of them, and is left to DDP. So is
    the smallest layer of a model that has no other trained parameters: DDP needs one.
    """
    owners: dict[int, int] = {}
    for _, parameter in model.named_parameters(remove_duplicate=False):
        owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    found = {
        f"{name}.weight" if name else "weight": module
        for name, module in model.named_modules()
        if type(module) is nn.Linear
        and "forward" not in vars(module)
        and module.weight.requires_grad
        and owners[id(module.weight)] == 1
    }
    trained = {name for name, one in model.named_parameters() if one.requires_grad}
    if found and trained <= found.keys():
        del found[min(found, key=lambda name: found[name].weight.numel())]
    return found


class FactorExchange:
    """The linear layers of a model whose gradients are exchanged as factors.

    A thread exchanges layer after layer, in the same order on all workers, the last layer first,
    each as soon as its part of the backward pass is over.

    Args:
        reducer: decides for which layers factors are sent.
        layers: the layers, by the names of their weights, which DDP must not reduce.
        exchange: the workers, on connections that no other thread uses.
        syncing: whether gradients of the current backward pass are reduced after it.
    """

    def __init__(
        self,
        reducer: Factors,
        layers: Mapping[str, nn.Linear],
        exchange: Exchange,
        syncing: Callable[[], bool],
    ) -> None:
        self._reducer = reducer
        self._exchange = exchange
        self._layers = [FactoredLinear(layer, syncing) for layer in [*layers.values()][::-1]]
        for one in self._layers:
            one.layer.forward = one  # type: ignore[method-assign]
        self._queue: queue.SimpleQueue[_Step | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="factors", daemon=True).start()

    def close(self) -> None:
        """End the thread; an exchange that waits for a peer ends when its group is freed."""
        self._queue.put(None)

    @contextlib.contextmanager
    def exchanging(self) -> Iterator[None]:
        """Context of the backward passes of a step; at its end all gradients are complete."""
        step = _Step()
        self._queue.put(step)
        try:
            yield
        except BaseException:
            step.failure = RuntimeError("the backward pass failed")
            raise
        finally:
            for one in self._layers:
                one.ready.set()
        step.done.wait()
        if step.failure is not None:
            raise step.failure
        self._finish()
        for one in self._layers:
            one.clear()

    def _run(self) -> None:
        while (step := self._queue.get()) is not None:
            try:
                for one in self._layers:
                    one.ready.wait()
                    if step.failure is None:
                        self._reduce(one)
            except Exception as error:  # noqa: BLE001 - raised again by `exchanging`
                step.failure = error
            step.done.set()

    @torch.no_grad()
    def _reduce(self, one: FactoredLinear) -> None:
        """Average a layer's gradient over all workers, as factors or as it is."""
        stated = [number for (number,) in self._exchange.numbers([one.statement])]
        if WHOLE not in stated:
            rows = [_Rows.of(one.layer, number) for number in stated]
            total = sum(each.count for each in rows)
            if self._reducer.pays(total, one.layer.in_features, one.layer.out_features):
                if total:
                    self._exchange_factors(one, rows)
                return
        mean = one.whole()
        self._exchange.sum(mean)
        one.mean = mean.div_(self._exchange.size)

    def _exchange_factors(self, one: FactoredLinear, rows: Sequence[_Rows]) -> None:
        with self._exchange.coding():
            payload = one.payload()
        received = self._exchange.gather(payload, [each.nbytes for each in rows])
        with self._exchange.coding():
            self._rebuild(one, rows, received)

    def _rebuild(
        self, one: FactoredLinear, rows: Sequence[_Rows], received: Sequence[torch.Tensor]
    ) -> None:
        """The mean gradient of a layer, from the factors of all workers."""
        columns: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
        for each, payload in zip(rows, received, strict=True):
            middle = each.count * each.widths[0] * each.dtype.itemsize
            parts = payload[:middle], aligned(payload[middle:])
            for part, width, column in zip(parts, each.widths, columns, strict=True):
                column.append(part.view(each.dtype).view(each.count, width))
        dtype = one.layer.weight.dtype
        inputs, gradients = (torch.cat(column).to(dtype) for column in columns)
        one.multiply(inputs, gradients.div_(self._exchange.size))

    @torch.no_grad()
    def _finish(self) -> None:
        """Set the weights' gradients, with what autograd computed on other ways than the layer."""
        own = [int(one.layer.weight.grad is not None) for one in self._layers]
        others = self._exchange.numbers(own)
        for one, *flags in zip(self._layers, *others, strict=True):
            weight = one.layer.weight
            if any(flags):
                added = torch.zeros_like(weight) if weight.grad is None else weight.grad.clone()
                self._exchange.sum(added)
                added.div_(self._exchange.size)
                one.mean = added if one.mean is None else added.add_(one.mean)
            if one.mean is not None:
                weight.grad = one.mean


class _Step:
    """The exchanges of one step."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.failure: Exception | None = None


@dataclass(frozen=True)
class _Rows:
    """One worker's factors of a layer."""

    count: int
    widths: tuple[int, int]
    """Numbers in a row of the inputs and of the output gradients."""
    dtype: torch.dtype

    @classmethod
    def of(cls, layer: nn.Linear, statement: int) -> _Rows:
        """The factors that a worker's statement describes."""
        count, dtype = divmod(statement, len(DTYPES))
        return cls(count, (layer.in_features, layer.out_features), DTYPES[dtype])

    @property
    def nbytes(self) -> int:
        """Bytes of both factors."""
        return self.count * sum(self.widths) * self.dtype.itemsize
