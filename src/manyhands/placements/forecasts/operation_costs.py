"""Work and depth of the operations that PyTorch dispatches, from the shapes of their tensors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import torch

from manyhands.costs.work_depth import (
    WorkDepth,
    element_wise,
    matrix_product,
    normalisation,
    pooling,
    softmax,
    summation,
)

if TYPE_CHECKING:
    from collections.abc import Callable

# fmt: off
_CREATED: Final = frozenset(
    [
        "arange", "empty", "empty_like", "empty_strided", "eye", "full", "full_like",
        "linspace", "new_empty", "new_full", "new_ones", "new_zeros", "ones", "ones_like",
        "scalar_tensor", "zeros", "zeros_like",
    ]
)
"""Operations whose results do not depend on the content of what they are given."""
_MOVED: Final = frozenset(
    [
        "_to_copy", "_unsafe_view", "as_strided", "cat", "clone", "constant_pad_nd", "copy",
        "copy_", "detach", "expand", "fill", "fill_", "flip", "gather", "index", "index_put",
        "index_put_", "index_select", "lift_fresh", "masked_select", "reflection_pad1d",
        "reflection_pad2d", "repeat", "replication_pad1d", "replication_pad2d", "roll",
        "select_scatter", "slice_scatter", "split_with_sizes_copy", "stack", "tril", "triu",
        "unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes", "zero", "zero_",
    ]
)
"""Operations that move numbers and compute none."""
# fmt: on
_SAME_MEMORY: Final = frozenset(
    ["_unsafe_view", "unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes"]
)
_RANDOM: Final = frozenset(["bernoulli", "bernoulli_", "normal_", "rand_like", "uniform_"])


def is_creation(func: Any) -> bool:
    """Whether an operation makes a tensor of nothing, or of the shape of another."""
    return _name(func) in _CREATED


def shares_memory(func: Any) -> bool:
    """Whether the result of an operation is part of the memory of what it is given."""
    return bool(func.is_view) or _name(func) in _SAME_MEMORY


def operation_cost(func: Any, args: tuple[Any, ...], result: Any) -> tuple[str, WorkDepth, bool]:
    """The kind of an operation, its work and depth, and whether there is a formula for it.

    Results that are integers or booleans are not counted. Without a formula, each element of the
    result counts as one operation.

    Args:
        func: the operation, as dispatched.
        args: its positional arguments.
        result: its result, or the first of several.
    """
    name = _name(func)
    if func.is_view or name in _CREATED or name in _MOVED or not _is_real(result):
        return "copy", WorkDepth(), True
    if name in _FORMULAS:
        kind, formula = _FORMULAS[name]
        return kind, formula(args, result), True
    if torch.Tag.pointwise in func.tags or name in _RANDOM:
        return "element-wise", element_wise(result.numel()), True
    if torch.Tag.reduction in func.tags and isinstance(args[0], torch.Tensor):
        return "reduction", _reduction(name, args, result), True
    return "other", element_wise(result.numel()), False


def _is_real(result: Any) -> bool:
    return isinstance(result, torch.Tensor) and (result.is_floating_point() or result.is_complex())


def _name(func: Any) -> str:
    name: str = func._schema.name
    return name.partition("::")[2]


def _product(args: tuple[Any, ...], result: torch.Tensor) -> WorkDepth:
    return matrix_product(result.numel(), args[0].shape[-1])


def _product_and_bias(args: tuple[Any, ...], result: torch.Tensor) -> WorkDepth:
    return matrix_product(result.numel(), args[1].shape[-1], bias=True)


def _linear(args: tuple[Any, ...], result: torch.Tensor) -> WorkDepth:
    bias = len(args) > 2 and args[2] is not None
    return matrix_product(result.numel(), args[1].shape[-1], bias)


def _convolution(args: tuple[Any, ...], result: torch.Tensor) -> WorkDepth:
    inputs, weight, bias, *_, transposed, _, _ = args
    terms = weight[0].numel()
    if transposed:  # each input is part of so many results
        terms = -(-inputs.numel() * terms // max(result.numel(), 1))
    return matrix_product(result.numel(), terms, bias is not None)


def _pool(dims: int, *, mean: bool) -> Callable[[tuple[Any, ...], torch.Tensor], WorkDepth]:
    def formula(args: tuple[Any, ...], result: torch.Tensor) -> WorkDepth:
        kernel = args[1]
        window = kernel[0] ** dims if len(kernel) == 1 else math.prod(kernel)
        return pooling(result.numel(), window, mean)

    return formula


def _adaptive(*, mean: bool) -> Callable[[tuple[Any, ...], torch.Tensor], WorkDepth]:
    def formula(args: tuple[Any, ...], result: torch.Tensor) -> WorkDepth:
        return pooling(result.numel(), _share(args[0], result), mean)

    return formula


def _layer_norm(args: tuple[Any, ...], result: torch.Tensor) -> WorkDepth:
    elements = math.prod(args[1])
    return normalisation(result.numel() // max(elements, 1), elements, args[2] is not None)


def _rms_norm(args: tuple[Any, ...], result: torch.Tensor) -> WorkDepth:
    elements = math.prod(args[1])
    rest = element_wise(elements, 1 if args[2] is None else 2)
    mean = pooling(1, elements, mean=True)
    each = element_wise(elements).then(mean).then(element_wise(1, 2)).then(rest)
    return each.times(result.numel() // max(elements, 1))


def _group_norm(args: tuple[Any, ...], result: torch.Tensor) -> WorkDepth:
    groups = args[3] * args[6]
    return normalisation(groups, result.numel() // max(groups, 1), args[1] is not None)


def _batch_norm(args: tuple[Any, ...], result: torch.Tensor) -> WorkDepth:
    affine, training = args[1] is not None, args[5]
    if not training:  # the mean and the factor are known
        return element_wise(result.numel(), 4 if affine else 2)
    channels = result.shape[1]
    return normalisation(channels, result.numel() // max(channels, 1), affine)


def _softmax(args: tuple[Any, ...], result: torch.Tensor) -> WorkDepth:
    length = result.shape[args[1]] if result.dim() else 1
    return softmax(result.numel() // max(length, 1), length)


def _lookup(_: tuple[Any, ...], result: torch.Tensor) -> WorkDepth:
    return element_wise(result.numel())


def _dropout(_: tuple[Any, ...], result: torch.Tensor) -> WorkDepth:
    return element_wise(result.numel(), 2)


def _reduction(name: str, args: tuple[Any, ...], result: torch.Tensor) -> WorkDepth:
    terms = _share(args[0], result)
    if name in {"var", "std", "var_mean", "std_mean"}:
        mean = pooling(1, terms, mean=True)
        return mean.then(element_wise(terms, 2)).then(mean).times(result.numel())
    if name == "mean":
        return pooling(result.numel(), terms, mean=True)
    return summation(terms).times(result.numel())


def _share(given: torch.Tensor, result: torch.Tensor) -> int:
    return -(-given.numel() // max(result.numel(), 1))


_FORMULAS: Final[dict[str, tuple[str, Callable[[tuple[Any, ...], torch.Tensor], WorkDepth]]]] = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "matmul"), ("matrix product", _product)),
    **dict.fromkeys(("addmm", "baddbmm", "addmv"), ("matrix product", _product_and_bias)),
    "linear": ("matrix product", _linear),
    "convolution": ("convolution", _convolution),
    **{
        f"max_pool{dims}d{ending}": ("pooling", _pool(dims, mean=False))
        for dims in (1, 2, 3)
        for ending in ("", "_with_indices")
    },
    **{f"avg_pool{dims}d": ("pooling", _pool(dims, mean=True)) for dims in (1, 2, 3)},
    **{f"_adaptive_avg_pool{dims}d": ("pooling", _adaptive(mean=True)) for dims in (2, 3)},
    **{f"adaptive_max_pool{dims}d": ("pooling", _adaptive(mean=False)) for dims in (2, 3)},
    "native_layer_norm": ("normalisation", _layer_norm),
    "_fused_rms_norm": ("normalisation", _rms_norm),
    "native_group_norm": ("normalisation", _group_norm),
    "native_batch_norm": ("normalisation", _batch_norm),
    **dict.fromkeys(("_softmax", "_log_softmax", "_safe_softmax"), ("element-wise", _softmax)),
    "embedding": ("embedding", _lookup),
    "native_dropout": ("element-wise", _dropout),
}
"""By operation, its kind and its formula."""
