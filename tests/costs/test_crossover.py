"""The fastest algorithm for a size, and the sizes at which it changes."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands import costs
from manyhands.costs import BETWEEN_WORKERS, LinkSpeed, crossover, fastest, fastest_ranges

LINK = LinkSpeed(latency=50e-6, bandwidth=1.25e9)
LINKS = st.builds(
    LinkSpeed, st.floats(1e-7, 1e-1), st.floats(1e6, 1e11), st.floats(1e8, 1e11) | st.just(math.inf)
)


def test_butterfly_and_halving_cross_where_latencies_weigh_as_much_as_bytes() -> None:
    # log2 n·(α + m/β) = 2·log2 n·α + 2m(n − 1)/n/β, for n = 64.
    size = crossover(costs.butterfly, costs.halving, 64, LINK)
    assert size == pytest.approx(6 * 50e-6 * 1.25e9 / (6 - 2 * 63 / 64))
    assert crossover(costs.halving, costs.butterfly, 64, LINK) == pytest.approx(size)


def test_the_ring_is_faster_for_large_vectors_unless_workers_are_a_power_of_two() -> None:
    assert crossover(costs.ring, costs.halving, 64, LINK) is None
    size = crossover(costs.ring, costs.halving, 48, LINK)
    assert fastest(size * 1.01, 48, LINK) == "ring"
    assert fastest(size * 0.99, 48, LINK) == "halving"
    assert [one.algorithm for one in fastest_ranges(48, LINK)] == ["butterfly", "halving", "ring"]


@given(LINKS, st.integers(2, 2000), st.floats(1, 1e12))
def test_ranges_say_which_is_fastest_for_every_size(link, workers, size) -> None:
    ranges = fastest_ranges(workers, link)
    assert ranges[0].begin == 0
    assert ranges[-1].end == math.inf
    for before, after in pairwise(ranges):
        assert before.end == after.begin
        met = crossover(
            BETWEEN_WORKERS[before.algorithm], BETWEEN_WORKERS[after.algorithm], workers, link
        )
        assert met == pytest.approx(after.begin)
    (within,) = (one for one in ranges if one.begin <= size < one.end)
    times = {name: each(size, workers).seconds(link) for name, each in BETWEEN_WORKERS.items()}
    assert times[within.algorithm] == pytest.approx(min(times.values()))
    assert times[fastest(size, workers, link)] == min(times.values())


def test_servers_can_take_part() -> None:
    among = {**BETWEEN_WORKERS, "server": costs.one_server}
    assert fastest(4, 64, LINK, among) == "server"
    assert fastest(1e6, 64, LINK, among) == "halving"
    assert fastest_ranges(64, LINK, among)[0].algorithm == "server"


def test_one_worker_needs_no_algorithm() -> None:
    (only,) = fastest_ranges(1, LINK)
    assert (only.begin, only.end) == (0, math.inf)
