"""Who is compared, as it is written."""

from dataclasses import replace

import pytest

from manyhands.lab.entrants import Entrant, read_entrants
from manyhands.notation import NotationError, split
from manyhands.notation.fields import settable
from manyhands.pacing import Pace
from manyhands.strategies import CATALOG, strategy


def test_a_text_is_split_at_commas_that_stand_in_no_bracket_and_no_quotes() -> None:
    text = 'allreduce, ssp(staleness=4, servers=2),gossip(graph=ring) , x("a, (b"), [1, 2],'
    assert split(text) == (
        "allreduce",
        "ssp(staleness=4, servers=2)",
        "gossip(graph=ring)",
        'x("a, (b")',
        "[1, 2]",
    )
    assert split(" , ") == ()


def test_entrants_are_strategies_in_their_order_whatever_they_are_given_as() -> None:
    labels = ("allreduce()", "ssp(staleness=2)", "local_sgd(every=8)")
    read = read_entrants("allreduce, ssp(staleness=2), local_sgd(every=8)")
    assert tuple(entrant.label for entrant in read) == labels
    assert read_entrants(["allreduce", strategy("ssp(staleness=2)"), "local_sgd"]) == read


def test_a_label_shows_what_was_written_though_it_is_the_default() -> None:
    read = read_entrants("local_sgd, local_sgd(8), hierarchical(outer=diloco(every=50), islands=2)")
    assert [entrant.label for entrant in read] == [
        "local_sgd()",
        "local_sgd(every=8) #2",
        "hierarchical(outer=diloco(every=50), islands=2)",
    ]


def test_a_label_shows_what_differs_among_the_entrants_of_one_strategy() -> None:
    values = [strategy("softsync(wait_for=1)"), strategy("softsync(wait_for=2)"), "local_sgd"]
    assert [entrant.label for entrant in read_entrants(values)] == [
        "softsync(wait_for=1)",
        "softsync(wait_for=2)",
        "local_sgd()",
    ]


NESTED = "hierarchical(outer=diloco{}, islands=3)"


@pytest.mark.parametrize(
    ("given", "labels"),
    [
        # One has the default, which a reader may not know.
        (["local_sgd()", "local_sgd(every=16)"], ["local_sgd(every=8)", "local_sgd(every=16)"]),
        (
            [strategy("diloco"), strategy("diloco(every=10)")],
            ["diloco(every=50)", "diloco(every=10)"],
        ),
        # The option is inside a strategy's own strategy.
        (
            [NESTED.format("(every=10)"), NESTED.format("(every=20)")],
            [NESTED.format("(every=10)"), NESTED.format("(every=20)")],
        ),
        (
            [strategy(NESTED.format("()")), strategy(NESTED.format("(every=10)"))],
            [NESTED.format("(every=50)"), NESTED.format("(every=10)")],
        ),
        (
            [strategy(NESTED.format("()")), "hierarchical(outer=averaging(every=1), islands=3)"],
            [
                NESTED.format("(every=50)"),
                "hierarchical(outer=averaging(every=1), islands=3)",
            ],
        ),
        # Strategies of different names have it both.
        (["asynchronous", "ssp(servers=2)"], ["asynchronous(servers=1)", "ssp(servers=2)"]),
        (["local_sgd", "diloco"], ["local_sgd(every=8)", "diloco(every=50)"]),
        # They differ in nothing but how they are slowed.
        (
            ["gossip slow all:1.2x", "gossip slow all:1.2000001x", "gossip slow 0:1.2x"],
            [
                "gossip() slow all:1.2x",
                "gossip() slow all:1.2000001x",
                "gossip() slow 0:1.2x",
            ],
        ),
    ],
    ids=str,
)
def test_a_label_hides_no_option_that_differs(given: list, labels: list[str]) -> None:
    found = [entrant.label for entrant in read_entrants(given)]
    assert found == labels
    again = read_entrants(found)
    assert [entrant.label for entrant in again] == labels
    assert [(one.strategy, one.slow) for one in again] == [
        (one.strategy, one.slow) for one in read_entrants(given)
    ]


def test_any_two_strategies_that_differ_have_labels_that_differ() -> None:
    """Whichever option of whichever strategy it is."""
    for name in CATALOG.names():
        description = CATALOG.describe(name)
        plain = strategy(description.example)
        for each in settable(type(plain)):
            for value in (2, 3, 0.25, 0.75, True, False, None, 1):
                if type(value) is not type(getattr(plain, each.name)):
                    continue
                try:
                    other = replace(plain, **{each.name: value})
                except ValueError:
                    continue
                if other == plain:
                    continue
                one, two = (entrant.label for entrant in read_entrants([plain, other]))
                assert f"{each.name}=" in one, (one, two)
                assert f"{each.name}=" in two, (one, two)
                assert one != two


def test_a_strategy_may_be_held_against_itself_and_slowed() -> None:
    read = read_entrants("allreduce, allreduce slow all:1.2x, allreduce, allreduce slow all:1.2x")
    assert [entrant.label for entrant in read] == [
        "allreduce()",
        "allreduce() slow all:1.2x",
        "allreduce() #2",
        "allreduce() slow all:1.2x #2",
    ]
    assert read[1].slow == (Pace(None, 1.2),)
    assert read[0].strategy == read[1].strategy
    several = Entrant.read("gossip() slow 0:2x 3:4x")
    assert several.slow == (Pace(0, 2.0), Pace(3, 4.0))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("allreduce, alreduce", "did you mean 'allreduce'"),
        ("ssp(staleness=4", "expected"),
        ("", "expected at least 1 strategy"),
        ("allreduce slow down", "expected a worker and a factor, such as 2:4x"),
        ("ssp(servers=0)", "between 1 and 1024"),
    ],
)
def test_what_is_no_strategy_is_refused_in_words(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_entrants(text)


def test_a_text_without_end_is_refused() -> None:
    with pytest.raises(NotationError, match="at most"):
        read_entrants("a" * 5000)


def test_single_runs_with_one_worker_whatever_the_others_run_with() -> None:
    single, other = read_entrants("single, allreduce")
    assert (single.workers(4), other.workers(4)) == (1, 4)
