"""The benchmark of predictions: its figures, and what is predicted from stored runs."""

import pytest
from benchmarks.figures import kept
from benchmarks.predictions import Case, regret, summary, tau, told_alike

from benchmarks import predictions


def case(name: str, predicted: float, measured: float) -> Case:
    return Case(name, predicted, measured, predicted, predicted)


def test_an_order_that_is_right_has_tau_one_and_no_regret() -> None:
    cases = [case("a", 300, 280), case("b", 200, 210), case("c", 100, 90)]
    assert tau(cases) == 1
    assert regret(cases) == 0


def test_an_order_that_is_wrong_has_tau_below_zero_and_regret() -> None:
    cases = [case("a", 300, 100), case("b", 200, 200), case("c", 100, 400)]
    assert tau(cases) == -1
    assert regret(cases) == pytest.approx(0.75)


def test_speeds_that_cannot_be_told_apart_do_not_count() -> None:
    assert tau([case("a", 102, 100), case("b", 100, 200), case("c", 50, 50)]) == 1
    assert tau([case("a", 102, 100), case("b", 100, 101)]) is None


def test_what_the_plan_cannot_tell_apart_is_held_to_the_runs() -> None:
    close = [case("a", 102, 100), case("b", 100, 130), case("c", 50, 50)]
    assert told_alike(close) == [pytest.approx(0.3 / 1.3)]
    wide = [Case("a", 100, 100, 80, 120), Case("b", 85, 90, 70, 95)]
    assert told_alike(wide) == [pytest.approx(1 / 9)]


def test_the_summary_has_the_error_of_every_case() -> None:
    found = summary({"one": [case("a", 110, 100), case("b", 50, 100)]})
    assert found["cases"] == 2
    assert found["median error"] == pytest.approx(0.3)


def test_stored_runs_are_predicted_again_as_well_as_is_said() -> None:
    stored = kept("predictions")["figures"]
    names = list(predictions.SITUATIONS)[:2]
    some = {one.name: stored[one.name] for one in names}
    again = predictions.predict_again({"calibrations": stored["calibrations"], **some})
    for name, cases in again.items():
        before = {one["strategy"]: one["predicted"] for one in stored[name]}
        for one in cases:
            assert one.predicted == pytest.approx(before[one.strategy], rel=0.02)
