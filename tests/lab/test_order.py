"""The order of a comparison's runs: complete, interleaved, and fair to all entrants."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from manyhands.lab.entrants import read_entrants
from manyhands.lab.order import turns

NAMES = ("allreduce", "ssp(staleness=4)", "asynchronous", "local_sgd(every=8)", "gossip", "easgd")
comparisons = st.tuples(
    st.integers(1, len(NAMES)),
    st.lists(st.integers(1, 8), min_size=1, max_size=3, unique=True),
    st.integers(1, 9),
    st.integers(0, 100),
)


def ordered(count: int, workers: list[int], repeats: int, seed: int):
    return turns(read_entrants(NAMES[:count]), workers, repeats, seed)


@given(comparisons)
def test_every_repeat_runs_each_entrant_once_with_one_seed(asked) -> None:
    count, workers, repeats, seed = asked
    made = ordered(*asked)
    size = count * len(workers)
    assert len(made) == size * repeats
    for repeat in range(repeats):
        block = made[repeat * size : (repeat + 1) * size]
        assert {(turn.place, turn.workers) for turn in block} == {
            (place, number) for place in range(count) for number in workers
        }
        assert {(turn.repeat, turn.seed) for turn in block} == {(repeat, seed + repeat)}
    assert len({turn.name for turn in made}) == len(made)


@given(comparisons)
def test_over_two_repeats_all_entrants_have_the_same_mean_place(asked) -> None:
    """So a drift that is the same from run to run adds the same to all."""
    count, workers, repeats, _ = asked
    made = ordered(*asked)
    size = count * len(workers)
    for first in range(0, repeats - 1, 2):
        places = Counter()
        for at, turn in enumerate(made[first * size : (first + 2) * size]):
            places[turn.place, turn.workers] += at
        assert len(set(places.values())) == 1


@given(comparisons)
def test_more_repeats_leave_those_before_as_they_were(asked) -> None:
    count, workers, repeats, seed = asked
    assert ordered(count, workers, repeats + 3, seed)[: len(ordered(*asked))] == ordered(*asked)


def test_every_entrant_is_first_at_some_time() -> None:
    made = ordered(4, [2], 8, 0)
    assert {turn.place for turn in made[::4]} == {0, 1, 2, 3}


def test_single_runs_once_a_repeat_with_one_worker() -> None:
    made = turns(read_entrants("single, allreduce"), [2, 4], 2, 0)
    assert [(str(turn.entrant.strategy), turn.workers) for turn in made] == [
        ("single()", 1),
        ("allreduce()", 2),
        ("allreduce()", 4),
        ("allreduce()", 4),
        ("allreduce()", 2),
        ("single()", 1),
    ]


def test_names_of_folders_are_plain_and_differ_where_texts_hardly_do() -> None:
    entrants = read_entrants(
        "softsync(wait_for=1), softsync(wait_for=11), easgd(rho=0.1), easgd(rho=0.10001)"
    )
    names = {turn.name for turn in turns(entrants, [1, 12], 2, 0)}
    assert len(names) == 16
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-") for name in names)
