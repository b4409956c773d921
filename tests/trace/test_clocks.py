import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.trace import estimate_offset

delays = st.floats(0, 1e4)


@settings(deadline=None)
@given(
    offset=st.floats(-1e7, 1e7),
    exchanges=st.lists(st.tuples(st.floats(0, 1e7), delays, delays), min_size=1),
)
def test_the_true_offset_lies_within_the_error(
    offset: float, exchanges: list[tuple[float, float, float]]
) -> None:
    timed = []
    for sent, there, back in exchanges:
        # The other clock is simulated as own + offset, which itself rounds.
        arrived = sent + there
        timed.append((sent, arrived + offset, arrived + back))
    estimate = estimate_offset(timed)
    assert abs(estimate.seconds - offset) <= estimate.error


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1e6), delays, delays), min_size=1))
def test_the_error_is_half_the_shortest_round_trip(
    exchanges: list[tuple[float, float, float]],
) -> None:
    timed = [(sent, sent + there, sent + there + back) for sent, there, back in exchanges]
    shortest = min(back - sent for sent, _, back in timed)
    assert estimate_offset(timed).error == pytest.approx(shortest / 2, abs=1e-8)


def test_equal_delays_give_the_offset_itself() -> None:
    estimate = estimate_offset([(10.0, 1244.75, 10.5)])
    assert estimate.seconds == 1234.5
    assert estimate.at == 10.5


def test_no_exchange_is_refused() -> None:
    with pytest.raises(ValueError, match="expected at least 1 exchange"):
        estimate_offset([])


def test_a_clock_that_goes_back_is_refused() -> None:
    with pytest.raises(ValueError, match="from one monotonic clock"):
        estimate_offset([(10.0, 5.0, 9.0)])
