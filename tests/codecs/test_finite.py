"""NaN and infinity are found wherever they are, and finite numbers are never taken for them."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manyhands.codecs import ErrorFeedback, half, int8, topk
from manyhands.codecs.kernels.finite import not_finite, not_finite_among

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str
)
@given(at=st.integers(0, 99), value=st.sampled_from([NAN, INF, -INF]))
def test_one_number_among_many_is_found(dtype, at, value) -> None:
    vector = torch.linspace(-60000, 60000, 100).to(dtype)
    assert not_finite(vector) == ""
    vector[at] = value
    expected = "NaN" if math.isnan(value) else "infinity"
    assert not_finite(vector) == expected
    assert not_finite_among([torch.ones(3), vector, torch.ones(2)]) == expected


def test_infinities_that_cancel_are_found() -> None:
    assert not_finite(torch.tensor([INF, -INF])) == "infinity"
    assert not_finite_among([torch.tensor([INF]), torch.tensor([-INF])]) == "infinity"


def test_a_sum_that_overflows_is_finite() -> None:
    large = torch.full((1000,), 3e38)
    assert not_finite(large) == ""
    assert not_finite_among([large, large]) == ""
    assert not_finite_among([large.to(torch.float64), torch.ones(2).half() * 60000]) == ""


def test_other_tensors_have_none() -> None:
    assert not_finite(torch.ones(2, dtype=torch.int64)) == ""
    assert not_finite(torch.empty(0)) == ""
    assert not_finite(torch.ones(2, device="meta")) == ""
    assert not_finite(torch.ones(2).to(torch.float8_e4m3fn)) == ""
    assert not_finite(torch.tensor([complex(0, NAN)])) == "NaN"
    assert not_finite_among([]) == ""
    sparse = torch.sparse_coo_tensor([[1]], [NAN], (4,), check_invariants=True)
    assert not_finite_among([sparse.coalesce()]) == "NaN"


def test_a_residual_does_not_keep_what_is_beyond_the_range_of_a_codec() -> None:
    stream = ErrorFeedback(half())
    payload = stream.encode(torch.tensor([1.0, 1e6]))
    assert not_finite(payload.view(torch.float16)) == "infinity", "so the receiver refuses it"
    assert stream.norm() == 0.0
    stream.encode(torch.tensor([1.0, 0.1]))
    assert stream.residual is not None
    assert not_finite(stream.residual) == ""


@pytest.mark.parametrize("kind", [topk(0.5), int8(feedback=True), half()], ids=str)
def test_a_residual_of_finite_updates_is_kept_to_the_bit(kind) -> None:
    generator, stream = torch.Generator().manual_seed(0), ErrorFeedback(kind)
    residual = torch.zeros(64)
    for _ in range(3):
        update = torch.randn(64, generator=generator)
        stream.encode(update, 1)
        residual.add_(update)
        kind.encode_rest(residual, 1)
    assert stream.residual is not None
    assert torch.equal(stream.residual, residual)
