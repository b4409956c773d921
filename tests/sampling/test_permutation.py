import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.sampling.division import nested, part
from manyhands.sampling.permutation import Share, mix, permutation, shares

deals = st.tuples(
    st.integers(1, 60),  # samples
    st.integers(1, 70),  # global batch: at times more than there are samples
    st.integers(0, 2**63),  # seed
    st.integers(1, 9),  # workers
    st.integers(1, 200),  # budget: at times several epochs, at times less than one
)


def dealt(samples: int, batch: int, seed: int, workers: int, budget: int) -> list[list[Share]]:
    """Per step, the shares of all workers."""
    every = [list(shares(samples, batch, seed, rank, workers, budget)) for rank in range(workers)]
    assert len({len(one) for one in every}) == 1, "workers disagree on the number of steps"
    return [list(step) for step in zip(*every, strict=True)]


def counted(step: list[Share]) -> list[int]:
    """The samples of a step that count, in rank order."""
    return [index for share in step for index in share.indices.tolist() if share.samples]


@given(total=st.integers(0, 10_000), workers=st.integers(1, 300))
def test_parts_are_a_partition_whose_sizes_differ_by_one_at_most(total: int, workers: int) -> None:
    parts = [range(total)[part(total, rank, workers)] for rank in range(workers)]
    assert list(itertools.chain(*parts)) == list(range(total))
    sizes = [len(one) for one in parts]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True), "what is left over goes to the first workers"
    assert not total or sizes[0] > 0


@given(total=st.integers(0, 1_000), copies=st.integers(1, 12), size=st.integers(1, 12))
def test_copies_get_their_parts_whatever_is_in_them(total: int, copies: int, size: int) -> None:
    places = range(copies * size)
    parts = [range(total)[nested(total, rank, copies * size, copies)] for rank in places]
    for copy in range(copies):
        own = parts[copy * size : (copy + 1) * size]
        assert list(itertools.chain(*own)) == list(range(total)[part(total, copy, copies)])
        assert max(map(len, own)) - min(map(len, own)) <= 1


@settings(deadline=None, max_examples=60)
@given(deals)
def test_every_step_deals_the_global_batch_and_the_run_exactly_its_budget(
    deal: tuple[int, int, int, int, int],
) -> None:
    samples, batch, _, _, budget = deal
    total = 0
    for number, step in enumerate(dealt(*deal)):
        left = samples - total % samples
        assert len(counted(step)) == min(batch, left, budget - total)
        for share in step:
            assert share.step == number
            assert share.epoch == total // samples
            assert share.total == len(counted(step))
        assert sum(share.samples for share in step) == len(counted(step))
        total += len(counted(step))
        assert {share.ends_epoch for share in step} == {total % samples == 0 or total == budget}
    assert total == budget


@settings(deadline=None, max_examples=60)
@given(deals)
def test_every_epoch_sees_every_sample_once_until_the_budget_cuts_it(
    deal: tuple[int, int, int, int, int],
) -> None:
    samples, *_, budget = deal
    epochs: dict[int, list[int]] = {}
    for step in dealt(*deal):
        epochs.setdefault(step[0].epoch, []).extend(counted(step))
    *whole, last = epochs.values()
    for seen in whole:
        assert sorted(seen) == list(range(samples))
    assert len(set(last)) == len(last) == (budget % samples or samples)


@settings(deadline=None, max_examples=60)
@given(deals, st.integers(1, 9))
def test_the_batches_do_not_depend_on_the_number_of_workers(
    deal: tuple[int, int, int, int, int], others: int
) -> None:
    samples, batch, seed, workers, budget = deal
    one = [counted(step) for step in dealt(samples, batch, seed, workers, budget)]
    other = [counted(step) for step in dealt(samples, batch, seed, others, budget)]
    assert one == other


@settings(deadline=None, max_examples=60)
@given(deals)
def test_a_worker_without_samples_borrows_the_first_ones_and_counts_none(
    deal: tuple[int, int, int, int, int],
) -> None:
    for step in dealt(*deal):
        assert step[0].samples > 0
        for share in step:
            assert len(share.indices) > 0
            if share.samples:
                assert len(share.indices) == share.samples
            else:
                assert torch.equal(share.indices, step[0].indices)


def test_the_last_batch_of_a_small_set_leaves_the_last_workers_empty() -> None:
    steps = dealt(7, 5, 0, 3, 7)
    assert [[share.samples for share in step] for step in steps] == [[2, 2, 1], [1, 1, 0]]
    assert [step[0].ends_epoch for step in steps] == [False, True]


def test_a_budget_that_ends_within_a_batch_cuts_that_batch() -> None:
    steps = dealt(10, 4, 0, 2, 13)
    assert [step[0].total for step in steps] == [4, 4, 2, 3]
    assert [step[0].epoch for step in steps] == [0, 0, 0, 1]
    assert [step[0].ends_epoch for step in steps] == [False, False, True, True]


def test_empty_data_is_refused() -> None:
    with pytest.raises(ValueError, match="the data is empty"):
        next(shares(0, 4, 0, 0, 1, 8))


@given(seed=st.integers(-(2**70), 2**70), epoch=st.integers(0, 1000))
def test_the_same_seed_and_epoch_give_the_same_order_again(seed: int, epoch: int) -> None:
    first = permutation(50, seed, epoch)
    permutation.cache_clear()
    assert torch.equal(first, permutation(50, seed, epoch))


def test_no_two_of_neighbouring_seeds_and_epochs_share_an_order() -> None:
    # A sum or an exclusive or of seed and epoch would give seed 1 the orders of seed 0, shuffled.
    orders = {
        tuple(permutation(50, seed, epoch).tolist()) for seed in range(16) for epoch in range(16)
    }
    assert len(orders) == 256


@given(
    seed=st.integers(-(2**63), 2**64),
    words=st.lists(st.integers(0, 2**64 - 1), max_size=3),
    nudge=st.integers(1, 64),
)
def test_neighbouring_seeds_and_words_mix_to_distinct_values(
    seed: int, words: list[int], nudge: int
) -> None:
    mixed = mix(seed, *words)
    assert 0 <= mixed < 2**63
    assert mix(seed, *words) == mixed
    assert mix(seed + nudge, *words) != mixed
    assert mix(seed, *words, 0) != mixed
    for place in range(len(words)):
        changed = [*words[:place], words[place] + nudge, *words[place + 1 :]]
        assert mix(seed, *changed) != mixed


@given(seed=st.integers(0, 2**32), word=st.integers(0, 2**32), nudge=st.integers(1, 2**16))
def test_a_seed_and_its_word_cannot_stand_in_for_each_other(
    seed: int, word: int, nudge: int
) -> None:
    assert mix(seed, word) != mix(seed ^ nudge, word ^ nudge)
    assert mix(seed, word) != mix(seed + nudge, word - nudge)
    assert seed == word or mix(seed, word) != mix(word, seed)
