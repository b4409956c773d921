"""Curves over a swept option, and which value is best."""

import pytest
from comparisons import compared, repeated

from manyhands.reports.comparison.standings import fields
from manyhands.reports.comparison.sweeps import answers, best, position, sweeps


def swept(rates: dict[int, float], **changes: object):
    runs = [
        run
        for value, rate in rates.items()
        for run in repeated(
            f"ssp(staleness={value})",
            rate,
            swept={"staleness": value},
            curve="ssp(staleness=0..8)",
            **changes,
        )
    ]
    return sweeps(compared(*repeated("allreduce()", 90.0), *runs))


def test_points_are_in_the_order_of_their_values_and_others_are_levels() -> None:
    (sweep,) = swept({8: 100.0, 0: 50.0, 4: 120.0})
    (curve,) = sweep.curves
    assert (sweep.option, curve.name) == ("staleness", "ssp(staleness=0..8)")
    assert [point.value for point in curve.points] == [0, 4, 8] == list(sweep.values)
    assert [point.standing.strategy for point in sweep.comparators] == ["allreduce()"]


def test_the_best_value_is_named_with_those_that_are_no_worse() -> None:
    (sweep,) = swept({0: 50.0, 4: 120.0, 8: 119.5})
    rate = next(column for column in sweep.columns if column.name == "rate")
    found = best(sweep.curves[0], rate)
    assert found is not None
    assert (found.point.value, found.answer(0), found.answer(8)) == (4, "behind", "even")
    assert [found.answer(4)] == [""]
    assert (
        "Throughput is best at staleness=4 (120 samples/s); no difference larger than 5 % to 8; "
        "the others are worse by more than 5 %."
    ) in answers(sweep)


def test_too_few_runs_say_so() -> None:
    (sweep,) = swept({0: 100.0, 4: 104.0}, factors=(1.0,))
    assert any("1 run of each cannot tell it from 0" in line for line in answers(sweep))


def test_conditions_are_not_recommended() -> None:
    runs = [
        run
        for value in ("1gbit", "10mbit")
        for run in repeated("ssp()", 10.0, swept={"bandwidth": value})
    ]
    (sweep,) = sweeps(compared(*runs))
    assert sweep.values == ("10mbit", "1gbit")
    assert answers(sweep) == []
    assert {point.field.conditions for point in sweep.curves[0].points} == {
        ", bandwidth=10mbit",
        ", bandwidth=1gbit",
    }


@pytest.mark.parametrize(
    ("option", "value", "at"),
    [
        ("bandwidth", "8mbit", 1e6),
        ("latency", "2ms", 0.002),
        ("lr", "0.5x", 0.5),
        ("wait_for", 3, 3.0),
        ("graph", "ring", None),
        ("bandwidth", "fast", None),
    ],
)
def test_the_position_on_the_axis(option: str, value: object, at: float | None) -> None:
    assert position(option, value) == at


def test_one_worker_alone_competes_with_a_swept_learning_rate_too() -> None:
    rates = [
        run
        for lr in (0.1, 0.2)
        for name, workers in (("single()", 1), ("ssp()", 2))
        for run in repeated(f"{name} lr={lr}", 10.0, workers=workers, swept={"lr": lr}, curve=name)
    ]
    (field,) = fields(compared(*rates))
    assert (field.workers, len(field.standings)) == (2, 4)
