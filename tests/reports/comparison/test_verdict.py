import random

import pytest
from comparisons import QUIET, compared, repeated, run

from manyhands.reports import failed
from manyhands.reports.comparison.standings import fields
from manyhands.reports.comparison.verdict import judge, verdict

COMMUNICATING = {
    "compute": 0.4,
    "wait": 0.05,
    "communication": 0.5,
    "data": 0.02,
    "evaluation": 0.03,
    "other": 0.0,
}


def sentences(*runs, **changes) -> str:
    found = verdict(compared(*runs, **changes))
    assert found is not None
    return found.words


def test_the_fastest_and_why_the_slowest_is_not() -> None:
    words = sentences(
        *repeated("allreduce()", 1000, shares=COMMUNICATING, accuracy=0.975),
        *repeated("asynchronous()", 2000, accuracy=0.974),
    )
    assert words == (
        "Use asynchronous() on 2 workers: it is the fastest.\n"
        "Speed: asynchronous() is fastest (2,000 samples/s, 2.00 times allreduce()).\n"
        "In the end: allreduce() (accuracy 97.50 %) and the others have no difference larger than "
        "1 point.\n"
        "Within the time that the fastest took: asynchronous() has the best accuracy "
        "(97.40 %, 20 points above allreduce()).\n"
        "Why: allreduce() took 2.00 times as long as "
        "asynchronous(), mostly through communication: 50 % of its time (0.5 s per 1,000 samples), "
        "against 10 % (0.05 s) under asynchronous()."
    )


def test_the_recommendation_is_the_fastest_of_the_accurate() -> None:
    recommended = {
        "it is the fastest": [("a()", 2000, 0.97), ("b()", 1000, 0.97)],
        "it is the fastest of those with the best accuracy": [
            ("b()", 2000, 0.9),
            ("a()", 1000, 0.97),
            ("c()", 500, 0.97),
        ],
        "none is faster, and b() is as fast": [("a()", 1005, 0.97), ("b()", 1000, 0.97)],
        "none is faster, and it has the best accuracy": [("a()", 1005, 0.97), ("b()", 1000, 0.9)],
    }
    for why, given in recommended.items():
        runs = [one for name, rate, acc in given for one in repeated(name, rate, accuracy=acc)]
        assert verdict(compared(*runs)).recommendation == f"Use a() on 2 workers: {why}."


def test_one_that_needs_less_time_after_the_first_epoch_may_overtake_the_fastest() -> None:
    quick = repeated("quick()", 2000, first_epoch=1.0, later_epoch=1.0, evaluation=0.5)
    slow_start = repeated("late()", 1000, first_epoch=4.0, later_epoch=0.7, evaluation=0.5)
    found = verdict(compared(*quick, *slow_start))
    assert found.contests["speed"].winner == "quick()"
    assert found.reasons[-1] == (
        "A longer run: after the first epoch late() needs 80 % of the time that quick() needs for "
        "an epoch and its evaluation, and may overtake it."
    )
    alike = repeated("late()", 1000, first_epoch=4.0, later_epoch=1.0, evaluation=0.5)
    assert "longer run" not in sentences(*quick, *alike)


def test_one_whose_samples_took_no_longer_is_not_said_to_have_taken_longer() -> None:
    words = sentences(*repeated("a()", 2000), *repeated("b()", 1000, seconds=2.5))
    assert "a() is fastest (2,000 samples/s, 2.00 times b())" in words
    assert "times as long" not in words
    assert "all of them spent 70 % on computing" in words


def test_equal_ones_are_called_equal() -> None:
    words = sentences(*repeated("a()", 1000), *repeated("b()", 1005), *repeated("c()", 500))
    assert "b() and a() are equally fast: no difference larger than 5 %" in words
    assert "and faster than the others" in words


def test_too_few_runs_are_called_too_few() -> None:
    words = sentences(run("a()", 1000), run("b()", 2000))
    assert "Make more runs on 2 workers: 1 run of each cannot tell the strategies apart." in words
    assert "is fastest" not in words
    assert "Use" not in words
    # Only one was evaluated in time, which says nothing about the other.
    words = sentences(run("a()", 500), run("b()", 2000), budget_seconds=3.01)
    assert words.startswith("Make more runs on 2 workers")
    loud = (1.0, 1.3, 0.8)
    words = sentences(
        *repeated("a()", 1000, loud, accuracy=0.9),
        *repeated("b()", 1100, tuple(reversed(loud)), accuracy=0.95),
    )
    assert "b() had the highest throughput" in words
    assert "not enough runs to tell it from a()" in words


def test_one_worker_alone_may_win() -> None:
    words = sentences(
        *repeated("single()", 2000, workers=1),
        *repeated("allreduce()", 1200, workers=4),
        processes_per_core=2.0,
    )
    assert "Use single() and do not distribute: it is the fastest." in words
    assert "2 processes to a core" in words


def test_accuracy_within_a_budget_of_seconds() -> None:
    # After four seconds the slow one has been evaluated once, the fast one three times.
    comparison = compared(
        *repeated("slow()", 1000, accuracy=0.99),
        *repeated("fast()", 2000, accuracy=0.95),
        budget_seconds=3.5,
    )
    (field,) = fields(comparison)
    contests = judge(field).contests
    assert contests["end"].winner == "slow()"
    assert contests["budget"].winner == "fast()"
    assert "Within 3.5 s: fast() has the best accuracy" in judge(field).words


def test_whoever_was_not_evaluated_in_time_is_not_in_that_contest() -> None:
    comparison = compared(*repeated("slow()", 500), *repeated("fast()", 2000), budget_seconds=3.01)
    (field,) = fields(comparison)
    assert not judge(field).contests["budget"].differences
    assert "only fast() was evaluated" in judge(field).words


def test_live_and_virtual_never_compete() -> None:
    comparison = compared(*repeated("a()", 1000), *repeated("a()", 9000, kind="virtual", workers=4))
    live, virtual = fields(comparison)
    assert [live.kind, virtual.kind] == ["live", "virtual"]
    assert all(each.kind == "live" for standing in live.standings for each in standing.runs)
    assert "a() ran alone" in judge(live).words
    assert "on 4 virtual workers" in judge(virtual).words


def test_fields_by_the_number_of_workers_each_with_one_alone() -> None:
    comparison = compared(
        *repeated("single()", 500, workers=1),
        *repeated("a()", 900, workers=2),
        *repeated("a()", 1600, workers=4),
    )
    found = fields(comparison)
    assert [field.workers for field in found] == [4, 2]
    for field, speedup in zip(found, (3.2, 1.8), strict=True):
        alone, together = field.standings
        column = field.column("speedup")
        assert (alone.strategy, alone.workers) == ("single()", 1)
        assert together.middle(column).value == pytest.approx(speedup)


def test_without_single_a_strategy_is_held_against_itself() -> None:
    comparison = compared(*repeated("a()", 500, workers=1), *repeated("a()", 900, workers=2))
    field = fields(comparison)[0]
    (standing,) = field.standings
    assert standing.middle(field.column("speedup")).value == pytest.approx(1.8)
    assert standing.middle(field.column("efficiency")).value == pytest.approx(0.9)


def test_failed_runs_are_left_out_of_every_figure() -> None:
    lost = failed(
        "worker 1 was killed",
        strategy="b()",
        kind="live",
        workers=2,
        repeat=2,
        seed=2,
        folder="",
    )
    comparison = compared(*repeated("a()", 1000), *repeated("b()", 700, QUIET[:2]), lost)
    (field,) = fields(comparison)
    standing = field.standings[1]
    assert (len(standing.runs), standing.failures) == (2, (lost,))
    assert judge(field).contests["speed"].winner == "a()"


def test_nothing_has_run() -> None:
    assert verdict(compared()) is None
    lost = failed("no", strategy="b()", kind="live", workers=2, repeat=0, seed=0, folder="")
    assert sentences(lost) == ("No run has finished: 1 failed.\nFailed: 1 of 1 runs of b(): no.")


def test_a_metric_that_is_better_when_lower() -> None:
    def losing(strategy, value):
        return [
            run(
                strategy,
                1000 * factor,
                repeat=n,
                validation={"loss": _curve(value * factor)},
            )
            for n, factor in enumerate(QUIET)
        ]

    contests = verdict(compared(*losing("a()", 0.5), *losing("b()", 0.3))).contests
    assert contests["end"].winner == "b()"
    assert contests["end"].differences["a()"].estimate == pytest.approx(0.5 / 0.3)
    words = verdict(compared(*losing("a()", 0.5), *losing("b()", 0.3))).words
    assert "b() has the best loss (0.3, 1.67 times as much under a())" in words


def _curve(value):
    return (
        run("x", 1000)
        .validation["accuracy"]
        .__class__(seconds=(1.0, 6.0), samples=(1000, 6000), value=(2.0, value))
    )


def test_planted_truths_through_the_whole_verdict() -> None:
    """A strategy slowed by a fifth is slower in ten of ten comparisons; equal ones are never."""
    rng = random.Random(1)  # noqa: S311 - nothing secret is drawn

    def noisy(strategy, rate):
        return [run(strategy, rate * rng.gauss(1, 0.02), repeat=n) for n in range(5)]

    for _ in range(10):
        slowed = compared(*noisy("a()", 1000), *noisy("slowed()", 1000 / 1.2))
        assert verdict(slowed).contests["speed"].behind == ("slowed()",)
        equal = compared(*noisy("a()", 1000), *noisy("b()", 1000))
        assert not verdict(equal).contests["speed"].behind


def test_runs_that_a_time_limit_ended_count_to_their_last_evaluation() -> None:
    # They end a moment after it, with their last evaluation.
    runs = [*repeated("a()", 1000, accuracy=0.9), *repeated("b()", 1003, accuracy=0.95)]
    limited = compared(*runs, budget_seconds=5.9, job={"seconds": "5.9"})
    found = verdict(limited)
    assert found.contests["budget"].differences == found.contests["end"].differences
    assert "In the end, and so within the budget: b() has the best accuracy" in found.words
    asked_later = compared(*runs, budget_seconds=5.9, job={"seconds": "60"})
    assert verdict(asked_later).contests["budget"].best.middle(
        fields(asked_later)[0].column("within")
    ).value == pytest.approx(0.9)
