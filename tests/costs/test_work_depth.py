"""Work and depth of layers, against evaluations that are carried out one by one."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.costs import WorkDepth
from manyhands.costs.work_depth import (
    attention,
    element_wise,
    matrix_product,
    normalisation,
    pooling,
    softmax,
    summation,
)


class Counted:
    """A number that knows how deep it is; all of them count operations."""

    operations = 0

    def __init__(self, depth: int = 0) -> None:
        self.depth = depth

    def __add__(self, other: "Counted") -> "Counted":
        Counted.operations += 1
        return Counted(1 + max(self.depth, other.depth))

    __mul__ = __sub__ = __add__

    def apply(self) -> "Counted":
        Counted.operations += 1
        return Counted(1 + self.depth)


def total(numbers: list[Counted]) -> Counted:
    """Pairs are added, then pairs of their sums."""
    while len(numbers) > 1:
        odd = numbers[-1:] if len(numbers) % 2 else []
        numbers = [a + b for a, b in zip(numbers[::2], numbers[1::2], strict=False)] + odd
    return numbers[0]


def counted(results: list[Counted]) -> WorkDepth:
    work, Counted.operations = Counted.operations, 0
    return WorkDepth(work, max(one.depth for one in results))


@given(st.integers(1, 300))
def test_a_sum_is_a_tree(terms: int) -> None:
    assert counted([total([Counted() for _ in range(terms)])]) == summation(terms)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(1, 1, 1), (2, 5, 3), (3, 8, 2)])
def test_a_fully_connected_layer(rows: int, inputs: int, outputs: int, bias: bool) -> None:
    results = []
    for _ in range(rows * outputs):
        products = [Counted() * Counted() for _ in range(inputs)]
        results.append(total([Counted()] * bias + products))
    found, formula = counted(results), matrix_product(rows * outputs, inputs, bias)
    assert found.work == formula.work
    assert found.depth == formula.depth


@pytest.mark.parametrize("length", [1, 2, 5, 8, 13])
def test_softmax(length: int) -> None:
    row = [Counted() for _ in range(length)]
    most = total(row)
    powers = [(one - most).apply() for one in row]
    whole = total(powers)
    assert counted([one * whole for one in powers]) == softmax(1, length)


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("length", [2, 5, 8, 13])
def test_normalisation(length: int, affine: bool) -> None:
    row = [Counted() for _ in range(length)]
    mean = total(row).apply()
    differences = [one - mean for one in row]
    variance = total([one.apply() for one in differences]).apply()
    scale = variance.apply().apply()
    results = [one * scale for one in differences]
    if affine:
        results = [one * Counted() + Counted() for one in results]
    assert counted(results) == normalisation(1, length, affine)


def test_attention() -> None:
    queries, keys, width, values = 3, 5, 4, 2
    results = []
    for _ in range(queries):
        scores = [
            total([Counted() * Counted() for _ in range(width)]).apply() + Counted()
            for _ in range(keys)
        ]
        most = total(scores)
        powers = [(one - most).apply() for one in scores]
        whole = total(powers)
        shares = [one * whole for one in powers]
        results += [total([share * Counted() for share in shares]) for _ in range(values)]
    assert counted(results) == attention(1, queries, keys, width, values, masked=True)


def test_the_formulas_that_are_written_down() -> None:
    assert matrix_product(30, 800, bias=True) == WorkDepth(2 * 30 * 800, 1 + 10)
    assert pooling(100, 9, mean=True) == WorkDepth(900, 5)
    assert softmax(7, 100) == WorkDepth(7 * 498, 2 * 7 + 3)
    assert normalisation(6, 100) == WorkDepth(6 * 702, 2 * 7 + 9)
    assert element_wise(50, 3) == WorkDepth(150, 3)
    assert element_wise(0) == WorkDepth(0, 0)


def test_depth_grows_with_the_logarithm_and_work_in_proportion() -> None:
    small, large = matrix_product(1, 1024), matrix_product(1, 1024**2)
    assert large.work / small.work == pytest.approx(1024, rel=1e-3)
    assert large.depth - small.depth == math.log2(1024)


def test_parallelism_is_work_over_depth() -> None:
    first, second = WorkDepth(10, 3), WorkDepth(20, 5)
    assert first.then(second) == WorkDepth(30, 8)
    assert first.times(4) == WorkDepth(40, 3)
    assert first.then(second).parallelism == 30 / 8
    assert WorkDepth().parallelism == 0
