"""Differences of parameters: what is compared, and what rounding alone explains."""

import math

import torch

from manyhands.lab.check.check import difference, distances

EQUAL = 1e-9


def test_complex_parameters_are_compared() -> None:
    one = {"w": torch.ones(3, dtype=torch.cfloat)}
    other = {"w": torch.tensor([1, 1, 1 + 0.5j], dtype=torch.cfloat)}
    found = difference(one, other, EQUAL)
    assert (found.differing, found.parameters, found.parameter) == (1, 1, "w")
    assert math.isclose(found.largest, 0.5, rel_tol=1e-6)


def test_a_number_that_is_finite_in_one_run_only_differs() -> None:
    one = {"w": torch.tensor([1.0, 2.0])}
    assert difference(one, {"w": torch.tensor([1.0, math.nan])}, EQUAL).differing == 1
    assert difference(one, {"w": torch.tensor([1.0, math.inf])}, EQUAL).differing == 1
    both = {"w": torch.tensor([math.nan, math.inf])}
    assert distances(both, both) == {"w": 0.0}


def test_what_rounding_moves_is_no_difference_and_hides_none() -> None:
    one = {"bias": torch.zeros(2), "weight": torch.zeros(2)}
    other = {"bias": torch.full((2,), 0.02), "weight": torch.full((2,), 1e-12)}
    assert difference(one, other, EQUAL).differing == 1
    noise = {"bias": 0.01, "weight": 1e-12}
    found = difference(one, other, EQUAL, noise)
    assert found.differing == 0
    assert found.largest <= EQUAL
    apart = difference(one, other | {"weight": torch.full((2,), 1e-3)}, EQUAL, noise)
    assert (apart.differing, apart.parameter) == (1, "weight")
