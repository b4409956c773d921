import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.sampling import batches
from manyhands.sampling.batches import BatchSizes, EvaluationPoints, deal

sizes = st.lists(st.tuples(st.integers(0, 120), st.integers(1, 40)), max_size=4).map(
    lambda changes: BatchSizes(((0, 7), *sorted(changes)))
)


@given(samples=st.integers(1, 60), sizes=sizes, budget=st.integers(1, 200))
def test_batches_follow_each_other_without_a_gap(
    samples: int, sizes: BatchSizes, budget: int
) -> None:
    dealt = 0
    for batch in deal(samples, sizes, budget):
        assert (batch.epoch, batch.start) == divmod(dealt, samples)
        assert batch.dealt == dealt
        assert batch.whole == sizes.at(dealt)
        left = samples - batch.start
        assert batch.total == min(batch.whole, left, budget - dealt) > 0
        dealt += batch.total
        assert batch.ends_epoch == (batch.total == left or dealt == budget)
    assert dealt == budget


def test_a_size_is_in_force_for_batches_that_begin_after_its_change() -> None:
    found = deal(10, BatchSizes(((0, 4), (15, 8))), 40)
    assert [(batch.dealt, batch.total) for batch in found] == [
        *((0, 4), (4, 4), (8, 2), (10, 4)),
        *((14, 4), (18, 2), (20, 8), (28, 2), (30, 8), (38, 2)),
    ]


def test_without_a_change_there_is_one_size() -> None:
    assert BatchSizes.of(5) == BatchSizes(((0, 5),)) == BatchSizes.of(BatchSizes.of(5))
    assert [BatchSizes.of(5).at(dealt) for dealt in (-1, 0, 10**9)] == [5, 5, 5]
    assert doctest.testmod(batches).failed == 0
    with pytest.raises(ValueError, match="the data is empty"):
        next(deal(0, 4, None))


@given(
    samples=st.integers(1, 60),
    sizes=sizes,
    budget=st.integers(1, 200),
    every=st.none() | st.integers(1, 90),
    epochs=st.booleans(),
)
def test_an_evaluation_follows_the_batch_that_completes_an_interval(
    samples: int, sizes: BatchSizes, budget: int, every: int | None, epochs: bool
) -> None:
    for batch in deal(samples, sizes, budget, EvaluationPoints(every, epochs)):
        done = batch.dealt + batch.total
        crossed = every is not None and done // every > batch.dealt // every
        ends = epochs and done % samples == 0
        assert batch.evaluates == (crossed or ends or done == budget)


@given(samples=st.integers(1, 60), sizes=sizes, budget=st.integers(1, 200))
def test_by_default_an_evaluation_follows_every_epoch(
    samples: int, sizes: BatchSizes, budget: int
) -> None:
    assert all(batch.evaluates == batch.ends_epoch for batch in deal(samples, sizes, budget))
