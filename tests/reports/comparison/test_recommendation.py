"""Which strategy is recommended: by the target, and against failed runs and missing accuracies."""

from collections.abc import Sequence

import pytest
from comparisons import compared, run

from manyhands.reports import Curve, RunResult, failed
from manyhands.reports.comparison.verdict import Verdict, verdict

TARGET = "accuracy >= 0.9"


def attempts(
    strategy: str, seconds: Sequence[float | None], *, rate: float = 1000.0, trained: float = 60.0
) -> list[RunResult]:
    """A run for each time to the target; None: it missed the target in all that it trained."""
    found = []
    for repeat, each in enumerate(seconds):
        spent = trained if each is None else each
        found.append(
            run(
                strategy,
                rate + repeat,
                accuracy=0.85 if each is None else 0.9,
                repeat=repeat,
                samples=int(rate * spent),
                seconds=spent,
                time_to_target=each,
                samples_to_target=None if each is None else int(rate * each),
            )
        )
    return found


def ended(strategy: str, accuracies: Sequence[float | None], rate: float) -> list[RunResult]:
    """A run for each final accuracy; None: it was not finite."""
    found = []
    for repeat, accuracy in enumerate(accuracies):
        curve = Curve(seconds=(1.0, 2.0), samples=(10, 20), value=(0.5, accuracy))
        one = run(strategy, rate + repeat, repeat=repeat, validation={"accuracy": curve})
        found.append(one)
    return found


def lost(strategy: str, repeats: Sequence[int]) -> list[RunResult]:
    return [
        failed(
            "RuntimeError: no",
            strategy=strategy,
            kind="live",
            workers=2,
            repeat=repeat,
            seed=repeat,
            folder=f"runs/{repeat}",
        )
        for repeat in repeats
    ]


def judged(*runs: RunResult, target: str | None = None) -> Verdict:
    found = verdict(compared(*runs, target=target))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("first", "second", "chosen"),
    [
        # Twice the throughput, five times the time to the target.
        (([50.0, 50.1, 50.2], 2000.0), ([10.0, 10.1, 10.2], 1000.0), "b()"),
        # Never there, however fast.
        (([None, None, None], 2000.0), ([10.0, 10.0, 10.0], 1000.0), "b()"),
        # Once, and sooner, against three times.
        (([10.0, None, None], 2000.0), ([12.0, 12.1, 12.2], 1000.0), "b()"),
        # The budget ends shortly after the target: a missed target is no time of 13 s.
        (([10.0, 13.1, None], 1000.0), ([12.0, 12.1, 12.2], 1000.0), "b()"),
        # A quarter of the time in all runs but one of six.
        (([5.0, 5.0, 5.0, 5.0, 5.0, None], 1000.0), ([50.0] * 6, 1000.0), "a()"),
    ],
)
def test_the_target_decides(
    first: tuple[list[float | None], float], second: tuple[list[float | None], float], chosen: str
) -> None:
    runs = attempts("a()", first[0], rate=first[1]) + attempts("b()", second[0], rate=second[1])
    found = judged(*runs, target=TARGET)
    assert found.strategy == chosen
    assert found.recommendation.startswith(f"Use {chosen}")
    assert found.contests["target"].best.strategy == chosen
    missed = [name for name, each in (("a()", first[0]), ("b()", second[0])) if None in each]
    assert all(f"{name} in " in found.recommendation for name in missed)


def test_equal_times_are_a_tie_also_of_missed_targets() -> None:
    ties = [10.0, 11.0, None]
    found = judged(
        *attempts("a()", ties, rate=500),
        *attempts("b()", ties, rate=1000),
        *attempts("c()", [10.0, None, None], rate=2000),
        target=TARGET,
    )
    contest = found.contests["target"]
    assert contest.differences["b()"].estimate == 1.0
    assert contest.differences["b()"].answer in {"same", "unknown"}
    assert contest.best.strategy == "a()"
    assert found.strategy != "c()"
    # Two only: they are equal to the last digit, and neither is ahead.
    both = judged(*attempts("a()", ties), *attempts("b()", ties), target=TARGET)
    assert both.contests["target"].even == ("b()",)
    assert "none reached accuracy >= 0.9 sooner, and b() is as soon" in both.recommendation


def test_a_target_that_no_run_reached_ranks_nobody() -> None:
    found = judged(*attempts("a()", [None] * 3), *attempts("b()", [None] * 3), target=TARGET)
    assert "target" not in found.contests
    assert found.strategy is None
    assert found.recommendation.startswith("No run reached accuracy >= 0.9 on 2 workers: give more")


@pytest.mark.parametrize(
    "fast", [[0.97, 0.1, 0.97], [0.97, 0.1, 0.1], [0.97, None, 0.97], [None] * 3]
)
def test_an_accuracy_that_is_missing_or_unsteady_is_not_good(fast: list[float | None]) -> None:
    found = judged(*ended("fast()", fast, 2000), *ended("steady()", [0.97] * 3, 1000))
    assert found.strategy == "steady()"
    assert "Use fast()" not in found.words
    assert "fast() was faster, but" in found.recommendation


@pytest.mark.parametrize("count", [1, 2, 3])
def test_failed_runs_count_against_their_strategy(count: int) -> None:
    fast = ended("fast()", [0.97] * (3 - count), 2000) + lost("fast()", range(3 - count, 3))
    found = judged(*fast, *ended("steady()", [0.97] * 3, 1000))
    assert found.strategy == "steady()"
    assert f"{count} of" in found.recommendation
    assert f"Failed: {count} of 3 runs of fast(): RuntimeError: no." in found.reasons


def test_failed_runs_missed_the_target() -> None:
    runs = attempts("fast()", [5.0]) + lost("fast()", [1, 2])
    found = judged(*runs, *attempts("steady()", [10.0, 10.1, 10.2]), target=TARGET)
    assert found.strategy == "steady()"
    assert "fast() in 1 of 3 runs" in found.recommendation
    assert "2 of 3 runs of fast() failed." in found.recommendation
