"""Items are divided by weights: all of them, and none is left without any."""

from hypothesis import given
from hypothesis import strategies as st

from manyhands.sampling.division import by_weight
from manyhands.sampling.speed_shares import better_shares

WEIGHTS = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=12)


@given(st.integers(0, 5000), WEIGHTS)
def test_all_items_are_given(total: int, weights: list[float]) -> None:
    counts = by_weight(total, weights)
    assert sum(counts) == total
    assert min(counts) >= (1 if total >= len(weights) else 0)


@given(st.integers(100, 5000), st.lists(st.floats(0.5, 2.0), min_size=1, max_size=12))
def test_parts_are_those_of_the_weights_rounded(total: int, weights: list[float]) -> None:
    counts = by_weight(total, weights)
    for count, weight in zip(counts, weights, strict=True):
        assert abs(count - total * weight / sum(weights)) < 2


@given(st.lists(st.floats(0.1, 10.0), min_size=2, max_size=8))
def test_shares_by_speed_need_equally_long(rates: list[float]) -> None:
    even = (1 / len(rates),) * len(rates)
    found = better_shares(even, [(100.0, 100.0 / rate) for rate in rates])
    times = [share / rate for share, rate in zip(found, rates, strict=True)]
    assert max(times) * sum(rates) < 1.04
    # Once they are good, they stay.
    again = [(share, share / rate) for share, rate in zip(found, rates, strict=True)]
    assert better_shares(found, again) == found
