"""Work, depth and average parallelism of the layers of a network.

The work W is the number of operations, the depth D the longest chain of operations that depend on
each other: the times on one processor and on infinitely many. W/D is the average parallelism, the
number of processors that the computation can keep busy.

Each addition, multiplication, comparison and elementary function of a real number is one operation.
The sum of k numbers is a binary tree: k − 1 additions, ⌈log2 k⌉ of them in a chain. Moving numbers
is free. These are the forward pass's; the asymptotic forms are in Ben-Nun, Hoefler, "Demystifying
Parallel and Distributed Deep Learning", 2019, section 4.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WorkDepth:
    """Work and depth of a computation.

    >>> WorkDepth(work=100, depth=4).parallelism
    25.0
    """

    work: int = 0
    """Operations: W."""
    depth: int = 0
    """Operations of the longest chain: D."""

    @property
    def parallelism(self) -> float:
        """Average parallelism, W/D; 0 if there is nothing to compute."""
        return self.work / self.depth if self.depth else 0.0

    def then(self, other: WorkDepth) -> WorkDepth:
        """Both, of which the other needs the result of this one."""
        return WorkDepth(self.work + other.work, self.depth + other.depth)

    def times(self, number: int) -> WorkDepth:
        """So many times, independent of each other.

        Args:
            number: how often.
        """
        return WorkDepth(self.work * number, self.depth if number else 0)


def summation(terms: int) -> WorkDepth:
    """Sum, or maximum, of k terms: W = k − 1, D = ⌈log2 k⌉.

    >>> summation(800)
    WorkDepth(work=799, depth=10)
    """
    return WorkDepth(max(terms - 1, 0), max(terms - 1, 0).bit_length())


def element_wise(elements: int, operations: int = 1) -> WorkDepth:
    """So many operations for each element, one after another: W = e·o, D = o.

    Args:
        elements: e, such as N·C·H·W of an activation function.
        operations: o.

    >>> element_wise(1000)
    WorkDepth(work=1000, depth=1)
    """
    return WorkDepth(operations, operations).times(elements)


def matrix_product(elements: int, terms: int, bias: bool = False) -> WorkDepth:
    """Products added up, for each element of a result, and a bias as one more term.

    W = e·(2k − 1), or 2·e·k with a bias; D = 1 + ⌈log2 k⌉, or 1 + ⌈log2(k + 1)⌉. A fully connected
    layer has e = N·outputs and k = inputs; a convolution e = N·C_out·H_out·W_out and
    k = C_in/groups·K_h·K_w.

    Args:
        elements: e, elements of the result.
        terms: k, products of each.
        bias: whether a bias is added.

    >>> matrix_product(elements=10, terms=1024, bias=True)
    WorkDepth(work=20480, depth=12)
    """
    products = WorkDepth(terms, 1 if terms else 0)
    return products.then(summation(terms + bias)).times(elements)


def pooling(elements: int, window: int, mean: bool = False) -> WorkDepth:
    """The maximum, or mean, of a window, for each element of a result.

    W = e·(k − 1), D = ⌈log2 k⌉; a mean has one division more.

    Args:
        elements: e, elements of the result.
        window: k, elements of the window.
        mean: whether their mean is computed.

    >>> pooling(elements=100, window=4)
    WorkDepth(work=300, depth=2)
    """
    each = summation(window)
    return (each.then(element_wise(1)) if mean else each).times(elements)


def normalisation(groups: int, elements: int, affine: bool = True) -> WorkDepth:
    """Mean and variance of k elements, then (x − mean)/√(variance + ε)·weight + bias, in g groups.

    W = g·(5k + 2), or g·(7k + 2) with weight and bias; D = 2⌈log2 k⌉ + 7, or 9. Batch normalisation
    has g = C and k = N·H·W; layer normalisation g = N·length and k = width.

    Args:
        groups: g, groups with a mean of their own.
        elements: k, elements of each.
        affine: whether weight and bias follow.

    >>> normalisation(groups=1, elements=64)
    WorkDepth(work=450, depth=21)
    """
    mean = pooling(1, elements, mean=True)
    squares = element_wise(elements, 2)  # differences to the mean, and their squares
    scale = element_wise(1, 2)  # plus ε, and the root's inverse
    rest = element_wise(elements, 3 if affine else 1)
    return mean.then(squares).then(mean).then(scale).then(rest).times(groups)


def softmax(rows: int, length: int) -> WorkDepth:
    """Maximum, differences to it, exponentials, their sum, and quotients, in each row.

    W = r·(5k − 2), D = 2⌈log2 k⌉ + 3.

    Args:
        rows: r.
        length: k, elements of each.

    >>> softmax(rows=1, length=16)
    WorkDepth(work=78, depth=11)
    """
    total = summation(length)
    exponentials = element_wise(length, 2)
    return total.then(exponentials).then(total).then(element_wise(length)).times(rows)


def attention(
    heads: int, queries: int, keys: int, width: int, value_width: int, masked: bool = False
) -> WorkDepth:
    """Scores of queries and keys, scaled, and masked if so; their softmax; a product with values.

    Scores that a mask excludes are counted.

    Args:
        heads: N·heads.
        queries: number of queries, q.
        keys: number of keys, k.
        width: length of a query and of a key, d: q·k scores of 2d − 1 operations.
        value_width: length of a value, v: q·v results of 2k − 1 operations.
        masked: whether a mask is added to scores.

    >>> attention(heads=1, queries=4, keys=4, width=2, value_width=2)
    WorkDepth(work=192, depth=13)
    """
    scores = matrix_product(queries * keys, width)
    adjusted = element_wise(queries * keys, 2 if masked else 1)
    mixed = matrix_product(queries * value_width, keys)
    return scores.then(adjusted).then(softmax(queries, keys)).then(mixed).times(heads)


@dataclass(frozen=True)
class LayerCost:
    """Work, depth and memory of one layer for a batch.

    >>> layer = LayerCost("classifier.1", "fully connected", WorkDepth(20480, 12), weights=41000)
    >>> layer.memory
    41000
    """

    name: str
    kind: str
    """"fully connected", "convolution", "pooling", "normalisation", "attention", …"""
    cost: WorkDepth
    weights: int = 0
    """Bytes of its parameters."""
    weight_gradients: int = 0
    """Bytes of the gradients of its parameters."""
    outputs: int = 0
    """Bytes of the results of its operations."""
    output_gradients: int = 0
    """Bytes of the gradients of these."""

    @property
    def memory(self) -> int:
        """Bytes of all four."""
        return self.weights + self.weight_gradients + self.outputs + self.output_gradients


@dataclass(frozen=True)
class NetworkCost:
    """Work and depth of a network and of its layers, for a batch."""

    layers: tuple[LayerCost, ...]
    cost: WorkDepth
    """The depth is that of the longest path, so branches count as one."""
    parameters: int
    """Number of parameters, tied ones once."""
    assumed: tuple[str, ...] = ()
    """Operations without a formula, counted as one operation for each element of their result."""

    @property
    def memory(self) -> int:
        """Bytes of weights, outputs and the gradients of both."""
        return sum(layer.memory for layer in self.layers)
