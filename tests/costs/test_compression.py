"""Step times with codecs: where one pays, and where it does not."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.costs import (
    CodingCost,
    allreduce_pays_below,
    allreduce_step_seconds,
    pays_below,
    push_step_seconds,
)

SECONDS = st.floats(1e-6, 10.0)
COSTS = st.builds(
    lambda dense, share, encode, decode: CodingCost(dense, dense * share, encode, decode),
    st.floats(1e3, 1e9),
    st.floats(0.001, 0.99),
    SECONDS,
    SECONDS,
)


@given(COSTS, SECONDS, SECONDS, st.floats(0.05, 0.95))
def test_a_push_is_faster_below_the_bandwidth_and_slower_above(cost, compute, latency, factor):
    bandwidth, plain = pays_below(cost), CodingCost.plain(cost.dense)

    def gained(rate):
        without = push_step_seconds(0.0, plain, plain, rate)
        return without - push_step_seconds(0.0, cost, cost, rate)

    assert gained(bandwidth * factor) > 0 > gained(bandwidth / factor)
    step = push_step_seconds(compute, cost, cost, bandwidth, latency)
    assert step == pytest.approx(push_step_seconds(compute, plain, plain, bandwidth, latency))


@given(COSTS, st.integers(2, 64), st.booleans())
def test_an_allreduce_takes_as_long_at_the_bandwidth(cost, workers, summed):
    bandwidth = allreduce_pays_below(cost, workers, summed=summed)
    coded = allreduce_step_seconds(0.1, cost, workers, bandwidth, summed=summed)
    plain = CodingCost.plain(cost.dense)
    without = allreduce_step_seconds(0.1, plain, workers, bandwidth, summed=True)
    assert coded == pytest.approx(without)


def test_a_codec_that_saves_nothing_never_pays_and_one_that_takes_no_time_always():
    assert pays_below(CodingCost(100.0, 120.0, 0.1, 0.1)) == 0
    assert pays_below(CodingCost(100.0, 50.0)) == math.inf
    assert allreduce_step_seconds(0.1, CodingCost(100.0, 50.0, 1.0, 1.0), 1, 1e6) == 0.1
