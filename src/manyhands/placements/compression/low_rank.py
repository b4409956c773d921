"""PowerSGD: matrices are averaged as products of two thin matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from manyhands.sampling.permutation import mix

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from manyhands.codecs.reducers import PowerSGD
    from manyhands.placements.compression.bucket import Bucket
    from manyhands.placements.compression.exchange import Exchange

_FIRST_COLUMNS: Final = 8
"""Purpose for `mix`: the first right matrix of a parameter."""
_RIGHT: Final = "@right"
"""Follows the name of a parameter in the name of its right matrix."""


class _Matrix:
    """The gradients of one parameter, over the steps.

    Args:
        gradient: its gradient, as a matrix.
        rank: columns of the thin matrices.
        seed: of the first right matrix, equal on all workers.
    """

    def __init__(self, gradient: torch.Tensor, rank: int, seed: int) -> None:
        source = torch.Generator().manual_seed(seed)
        columns = gradient.shape[1]
        right = torch.randn(columns, rank, generator=source, dtype=torch.float32)
        self.right = right.to(gradient.dtype)
        self.residual = torch.zeros_like(gradient)
        self.left = gradient.new_empty(0)

    def project(self, gradient: torch.Tensor) -> torch.Tensor:
        """The left matrix of this worker's gradient and of what it has not sent: P = M·Q."""
        self.residual.add_(gradient)
        return self.residual @ self.right

    def project_back(self, left: torch.Tensor) -> torch.Tensor:
        """The right matrix of this worker, of an orthonormal mean P: Q = Mᵀ·P."""
        self.left = _orthonormal(left)
        right = self.residual.T @ self.left
        # Only what lies in the columns of P is sent.
        self.residual.addmm_(self.left, right.T, alpha=-1)
        return right

    def product(self, right: torch.Tensor, into: torch.Tensor) -> None:
        """Write the mean P·Qᵀ; Q is the next step's first."""
        self.right = right.clone()
        torch.mm(self.left, right.T, out=into)


class LowRank:
    """The mean of a bucket whose large matrices are averaged by PowerSGD, and the rest as it is.

    Args:
        reducer: the rank of the thin matrices.
        exchange: the workers.
        seed: the job's seed.
    """

    def __init__(self, reducer: PowerSGD, exchange: Exchange, seed: int) -> None:
        self._reducer = reducer
        self._exchange = exchange
        self._seed = seed
        self._matrices: dict[str, _Matrix] = {}
        self._carried: dict[str, torch.Tensor] = {}

    def reduce(self, bucket: Bucket) -> None:
        """Replace the bucket's vector by the mean."""
        whole, gradients, matrices = [], [], []
        parts = bucket.split(bucket.vector)
        for name, shape, part in zip(bucket.names, bucket.shapes, parts, strict=True):
            if _is_divided(self._reducer, shape):
                gradients.append(part.view(shape[0], -1))
                matrices.append(self._matrix(name, gradients[-1]))
            else:
                whole.append(part)
        # One sum for all left matrices and for what is sent whole, one for all right matrices.
        with self._exchange.coding():
            lefts = [one.project(own) for one, own in zip(matrices, gradients, strict=True)]
        means = self._mean([*lefts, *whole])
        for part, mean in zip(whole, means[len(lefts) :], strict=True):
            part.copy_(mean)
        with self._exchange.coding():
            columns = zip(matrices, means[: len(lefts)], strict=True)
            rights = [one.project_back(mean) for one, mean in columns]
        means = self._mean(rights)
        with self._exchange.coding():
            for one, mean, into in zip(matrices, means, gradients, strict=True):
                one.product(mean, into)

    def unsent(self) -> dict[str, torch.Tensor]:
        """What was not sent yet of this worker's share of the sum, by parameter, as vectors."""
        carried = {name: one for name, one in self._carried.items() if not name.endswith(_RIGHT)}
        return carried | {name: one.residual.view(-1) for name, one in self._matrices.items()}

    def kept(self) -> dict[str, torch.Tensor]:
        """The right matrices, from which the next step begins."""
        return {f"{name}{_RIGHT}": one.right for name, one in self._matrices.items()}

    def carry(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Begin with what was not sent before, and with the same right matrices, if given."""
        self._carried = dict(tensors)

    def _matrix(self, name: str, gradient: torch.Tensor) -> _Matrix:
        there = self._matrices.get(name)
        if there is None:
            seed = mix(self._seed, _FIRST_COLUMNS, *name.encode())
            there = self._matrices[name] = _Matrix(gradient, self._reducer.rank, seed)
            if name in self._carried:
                there.residual = self._carried.pop(name).view_as(gradient).clone()
            if (right := self._carried.pop(f"{name}{_RIGHT}", None)) is not None:
                there.right = right.clone()
        return there

    def _mean(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The means over all workers, in one sum."""
        if not tensors:
            return []
        vector = torch.cat([one.reshape(-1) for one in tensors])
        self._exchange.sum(vector)
        vector.div_(self._exchange.size)
        parts = vector.split_with_sizes([one.numel() for one in tensors])
        return [part.view(one.shape) for part, one in zip(parts, tensors, strict=True)]


def _is_divided(reducer: PowerSGD, shape: torch.Size) -> bool:
    """Whether a parameter of this shape is sent as two thin matrices."""
    return len(shape) > 1 and shape.numel() > 0 and reducer.divides(shape[0], shape[1:].numel())


def _orthonormal(matrix: torch.Tensor) -> torch.Tensor:
    """A matrix with orthonormal columns that span those of the given one."""
    wide = matrix if matrix.element_size() >= 4 else matrix.float()
    columns: torch.Tensor = torch.linalg.qr(wide).Q
    return columns.to(matrix.dtype)
