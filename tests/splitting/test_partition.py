"""The split is the best there is, by comparison with all of them; and it is told in words."""

import doctest
import sys
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.splitting import PieceCost, describe, partition

pieces = st.builds(
    PieceCost,
    name=st.just("layer"),
    forward=st.integers(0, 20).map(float),
    backward=st.integers(0, 20).map(float),
    parameters=st.integers(0, 50),
    activations=st.integers(0, 50),
)


def stages_of(layers, starts):
    return [layers[a:b] for a, b in zip(starts, [*starts[1:], len(layers)], strict=True)]


@given(st.lists(pieces, min_size=1, max_size=8), st.data())
def test_no_other_split_is_faster_nor_as_fast_with_less_memory(layers, data):
    held = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=len(layers)))

    def slowest(starts):
        return max(sum(one.seconds for one in own) for own in stages_of(layers, starts))

    def largest(starts):
        return max(
            sum(2 * one.parameters + count * one.activations for one in own)
            for count, own in zip(held, stages_of(layers, starts), strict=True)
        )

    starts = partition(layers, held)
    others = [(0, *rest) for rest in combinations(range(1, len(layers)), len(held) - 1)]
    assert starts in others
    fastest = min(map(slowest, others))
    assert slowest(starts) <= 1.05 * fastest
    as_fast = [other for other in others if slowest(other) <= 1.05 * fastest]
    assert largest(starts) == min(map(largest, as_fast))


def test_a_stage_without_a_piece_is_refused():
    with pytest.raises(ValueError, match="2 pieces cannot become 3 stages"):
        partition([PieceCost("a", 1, 1, 1, 1), PieceCost("b", 1, 1, 1, 1)], [1, 1, 1])


def test_the_split_in_words():
    layers = [
        PieceCost("tokens", 0.0, 0.0, 4_000_000, 0),
        PieceCost("block", 1.0, 2.0, 2_500, 300),
        PieceCost("head", 0.5, 0.5, 1_500_000_000, 1_000),
    ]
    assert describe(layers, (0, 2), held=(4, 1)) == (
        "stage 0: tokens to block, 75 % of the time, 4.0 MB of parameters, 1.2 kB of activations",
        "stage 1: head, 25 % of the time, 1.5 GB of parameters, 1.0 kB of activations",
    )


def test_the_example():
    tried = doctest.testmod(sys.modules["manyhands.splitting.partition"])
    assert (tried.attempted, tried.failed) == (2, 0)
