"""Answers from few runs: what they follow from, and how often they are wrong."""

import doctest
import math
import random
from collections import Counter
from importlib import import_module
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.reports.comparison.statistics import gap, middle, ratio, student

MARGIN = 0.05
OTHER = {"more": "less", "less": "more", "same": "same", "unknown": "unknown"}


def test_examples_in_docstrings() -> None:
    assert doctest.testmod(import_module("manyhands.reports.comparison.statistics")).failed == 0


@pytest.mark.parametrize(
    ("freedom", "at_90", "at_95"),
    # From the tables that every textbook has.
    [
        (1, 6.3138, 12.7062),
        (2, 2.9200, 4.3027),
        (3, 2.3534, 3.1824),
        (4, 2.1318, 2.7764),
        (8, 1.8595, 2.3060),
        (9, 1.8331, 2.2622),
        (30, 1.6973, 2.0423),
        (120, 1.6577, 1.9799),
    ],
)
def test_students_t(freedom, at_90, at_95) -> None:
    assert student(freedom) == pytest.approx(at_90, abs=1e-4)
    assert student(freedom, 0.95) == pytest.approx(at_95, abs=1e-4)


def test_the_median_and_what_bounds_it() -> None:
    assert middle([]) is None
    few = middle([4.0, 1.0, 2.0, 3.0])
    assert few is not None
    assert (few.value, few.low, few.high, few.is_range) == (2.5, 1.0, 4.0, True)
    more = middle([float(value) for value in range(10)])
    assert more is not None
    assert (more.value, more.low, more.high, more.is_range) == (4.5, 1.0, 8.0, False)


@pytest.mark.parametrize("runs", [5, 8, 12])
def test_the_true_median_is_between_in_nine_cases_of_ten(runs) -> None:
    rng = random.Random(runs)  # noqa: S311 - nothing secret is drawn
    within = 0
    for _ in range(4000):
        # Skewed, as times are: the median of exp(gauss) is 1.
        found = middle([math.exp(rng.gauss(0, 1)) for _ in range(runs)])
        assert found is not None
        within += found.low <= 1.0 <= found.high
    assert within / 4000 > 0.89


def test_one_run_of_each_tells_nothing() -> None:
    found = ratio({"a": {0: 100.0}, "b": {0: 50.0}}, "a", "b", MARGIN)
    assert (found.estimate, found.low, found.answer) == (pytest.approx(2.0), None, "unknown")


def test_runs_of_different_repeats_are_not_held_together() -> None:
    found = ratio({"a": {0: 100.0, 1: 100.0}, "b": {2: 50.0, 3: 50.0}}, "a", "b", MARGIN)
    assert (found.estimate, found.answer, found.repeats) == (None, "unknown", 0)


def test_the_four_answers() -> None:
    steady = dict(enumerate((100.0, 101.0, 99.0)))

    def times(factor: float, *noise: float) -> dict[int, float]:
        return {n: steady[n] * factor * (1 + each) for n, each in enumerate(noise)}

    quiet = (0.004, -0.004, 0.0)
    assert ratio({"a": times(1.2, *quiet), "b": steady}, "a", "b", MARGIN).answer == "more"
    assert ratio({"a": times(0.8, *quiet), "b": steady}, "a", "b", MARGIN).answer == "less"
    assert ratio({"a": times(1.01, *quiet), "b": steady}, "a", "b", MARGIN).answer == "same"
    noisy = (0.2, -0.2, 0.0)
    assert ratio({"a": times(1.0, *noisy), "b": steady}, "a", "b", MARGIN).answer == "unknown"
    # Surely slower, and perhaps by less than the margin.
    assert ratio({"a": times(0.95, *quiet), "b": steady}, "a", "b", MARGIN).answer == "unknown"


def test_a_mood_that_neighbours_share_does_not_hide_a_difference() -> None:
    moods = (1.0, 0.5, 1.6)
    figures = {
        "a": {n: 120 * mood * (1 + 0.003 * n) for n, mood in enumerate(moods)},
        "b": {n: 100 * mood for n, mood in enumerate(moods)},
    }
    assert ratio(figures, "a", "b", MARGIN).answer == "more"


def test_accuracies_differ_by_points() -> None:
    figures = {
        "a": {0: 0.97, 1: 0.972, 2: 0.971},
        "b": {0: 0.93, 1: 0.931, 2: 0.932},
        "c": {0: 0.971, 1: 0.971, 2: 0.970},
    }
    assert gap(figures, "b", "a", 0.01).answer == "less"
    assert gap(figures, "c", "a", 0.01).answer == "same"
    assert gap(figures, "b", "a", 0.01).estimate == pytest.approx(-0.04)


positive = st.floats(1.0, 1000.0)


@given(
    st.lists(st.tuples(positive, positive, positive), min_size=2, max_size=6),
    st.lists(st.floats(0.1, 10.0), min_size=6, max_size=6),
)
def test_laws_of_an_answer(rows, moods) -> None:
    names = "abc"
    figures = {
        name: {repeat: row[place] for repeat, row in enumerate(rows)}
        for place, name in enumerate(names)
    }
    there, back = ratio(figures, "a", "b", MARGIN), ratio(figures, "b", "a", MARGIN)
    assert there.estimate is not None
    assert back.estimate == pytest.approx(1 / there.estimate)
    assert there.low is not None
    assert there.high is not None
    assert back.low == pytest.approx(1 / there.high)
    moved = {
        name: {repeat: value * moods[repeat] for repeat, value in each.items()}
        for name, each in figures.items()
    }
    again = ratio(moved, "a", "b", MARGIN)
    assert (again.low, again.high) == (pytest.approx(there.low), pytest.approx(there.high))
    # Nearer to the margin than rounding is, an answer may be either.
    edges = [abs(abs(math.log(end)) - math.log1p(MARGIN)) for end in (there.low, there.high)]
    if min(edges) > 1e-9:
        assert back.answer == OTHER[there.answer]
        assert again.answer == there.answer


def draw(rng, strategies, repeats, noise, *, slow=0.0, mood=0.1, loud=1.0):
    """Throughputs of a comparison; the second strategy is slower by `slow` and so much as loud."""
    figures: dict[str, dict[int, float]] = {f"s{n}": {} for n in range(strategies)}
    for repeat in range(repeats):
        shared = rng.gauss(0, mood)
        for n in range(strategies):
            own = rng.gauss(0, noise * (loud if n == 1 else 1))
            slower = math.log1p(slow) if n == 1 else 0.0
            figures[f"s{n}"][repeat] = 1000 * math.exp(shared + own - slower)
    return figures


def answers(draws, **of):
    """How often the second strategy was said to be what, against the first."""
    rng = random.Random(str(of))  # noqa: S311 - nothing secret is drawn
    return Counter(ratio(draw(rng, **of), "s1", "s0", MARGIN).answer for _ in range(draws))


@pytest.mark.parametrize("noise", [0.01, 0.03, 0.05])
@pytest.mark.parametrize(("strategies", "repeats"), [(2, 3), (2, 5), (5, 3), (5, 5)])
def test_two_that_are_equal_are_almost_never_called_different(strategies, repeats, noise) -> None:
    found = answers(600, strategies=strategies, repeats=repeats, noise=noise)
    # Of the bound of 5 % next to nothing is used, because the truth lies far from the margin.
    assert (found["more"] + found["less"]) / 600 <= (0.005 if noise < 0.04 else 0.03)


@pytest.mark.parametrize(
    ("strategies", "repeats", "noise"),
    [(2, 3, 0.01), (2, 4, 0.02), (2, 5, 0.03), (5, 3, 0.02), (5, 4, 0.03), (2, 8, 0.05)],
)
def test_a_slowdown_by_a_fifth_is_found_in_ten_of_ten(strategies, repeats, noise) -> None:
    found = answers(400, strategies=strategies, repeats=repeats, noise=noise, slow=0.2)
    assert found["less"] / 400 >= 0.995


def test_a_loud_strategy_does_not_borrow_the_quiet_ones_precision() -> None:
    found = answers(600, strategies=5, repeats=3, noise=0.01, loud=8.0)
    assert (found["more"] + found["less"]) / 600 <= 0.05


def test_at_the_margin_a_mistake_is_made_in_one_case_of_twenty() -> None:
    found = answers(2000, strategies=2, repeats=5, noise=0.02, slow=MARGIN)
    assert found["less"] / 2000 <= 0.065
    assert found["same"] / 2000 <= 0.065


def test_enough_quiet_runs_tell_that_there_is_no_difference() -> None:
    assert answers(300, strategies=2, repeats=5, noise=0.01)["same"] / 300 > 0.99
    few = answers(300, strategies=2, repeats=3, noise=0.05)
    assert few["unknown"] / 300 > 0.8, "and few loud ones do not"


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.01, 0.02, 0.03, 0.05, 0.1])
@pytest.mark.parametrize("repeats", [2, 3, 5, 10])
@pytest.mark.parametrize("strategies", [2, 5])
def test_mistakes_counted_at_length(strategies, repeats, noise) -> None:
    rng = random.Random(f"{strategies} {repeats} {noise}")  # noqa: S311 - nothing secret is drawn
    draws, wrong, fastest = 1000, 0, 0
    for _ in range(draws):
        figures = draw(rng, strategies, repeats, noise)
        pairs = {
            (one, other): ratio(figures, one, other, MARGIN).answer
            for one, other in combinations(figures, 2)
        }
        wrong += pairs["s0", "s1"] in ("more", "less")
        fastest += any(
            all(
                pairs.get((name, other), OTHER[pairs.get((other, name), "unknown")]) == "more"
                for other in figures
                if other != name
            )
            for name in figures
        )
    assert wrong / draws <= 0.06
    # To be called the fastest one has to be faster than each of the others.
    assert fastest / draws <= 0.06
