"""Whether a comparison came out the same: to the bit, or within intervals that are not too wide."""

import random

from comparisons import STALE, compared, repeated, run
from msgspec import structs

from manyhands.reports import Comparison, Curve, failed
from manyhands.reports.comparison.likeness import (
    differences_in_status,
    differences_to_the_bit,
    missing_figures,
    repeated_figures,
)


def changed(comparison: Comparison, number: int, **fields: object) -> Comparison:
    runs = [*comparison.runs]
    runs[number] = structs.replace(runs[number], **fields)
    return structs.replace(comparison, runs=tuple(runs))


def virtual(**fields: object) -> Comparison:
    return compared(*repeated("a()", 1000, kind="virtual", staleness=STALE, **fields))


def test_equal_runs_have_no_difference_wherever_and_whenever_they_were_made() -> None:
    stored = virtual()
    again = changed(virtual(), 1, folder="elsewhere", started="2026-01-01T00:00:00Z", ended="x")
    assert differences_to_the_bit(stored, again) == ()


def test_any_bit_is_a_difference() -> None:
    stored = virtual()
    second = stored.runs[1]
    curve = second.validation["accuracy"]
    values = (*curve.value[:-1], curve.value[-1] + 2**-53)
    moved = {**second.validation, "accuracy": structs.replace(curve, value=values)}
    shorter = Curve(seconds=(1.0,), samples=(1,), value=(0.5,))
    for fields, words in [
        ({"seconds": second.seconds * (1 + 2**-52)}, "seconds"),
        ({"validation": moved}, "validation.accuracy.value[2]"),
        ({"validation": {**moved, "accuracy": shorter}}, "validation.accuracy.seconds[0]"),
        ({"staleness": structs.replace(STALE, histogram={0: 4, 1: 5, 3: 1})}, "histogram.0 3"),
        ({"staleness": None}, "staleness"),
        ({"parameters_sha256": "c0ffee"}, "parameters_sha256 None stored, 'c0ffee' now"),
        ({"status": "failed"}, "status 'finished' stored, 'failed' now"),
    ]:
        found = differences_to_the_bit(stored, changed(stored, 1, **fields))
        assert found, fields
        assert all(line.startswith("a() × 2, repeat 1: ") for line in found)
        assert any(words in line for line in found), found
    fewer = structs.replace(stored, runs=stored.runs[:2])
    assert differences_to_the_bit(stored, fewer) == ("a() × 2, repeat 2: was not made again",)
    assert differences_to_the_bit(fewer, stored) == (), "an interrupted one is compared so far"


def live(scale: float = 1.0, spread: float = 0.0, seed: int = 0, **fields: object) -> Comparison:
    """Three strategies, three repeats each, whose speeds spread by so much."""
    draw = random.Random(seed)  # noqa: S311 - a simulation
    return compared(
        *(
            run(
                strategy,
                rate * scale * (1 + draw.gauss(0, spread)),
                repeat=repeat,
                accuracy=0.95 + draw.gauss(0, spread / 10),
                **fields,
            )
            for strategy, rate in (("a()", 900), ("b()", 1500), ("c()", 2000))
            for repeat in range(3)
        )
    )


def test_an_equal_comparison_is_called_different_in_at_most_one_case_of_twenty() -> None:
    mistaken = 0
    for seed in range(400):
        stored, again = live(spread=0.03, seed=seed), live(spread=0.03, seed=10_000 + seed)
        figures = repeated_figures(stored, again)
        assert len(figures) == 3 * 5, "speed, three metrics and bytes of three strategies"
        mistaken += not all(figure.is_within for figure in figures)
    assert mistaken <= 0.05 * 400


def test_a_slower_one_is_called_different() -> None:
    found = 0
    for seed in range(100):
        stored = live(spread=0.02, seed=seed)
        again = live(scale=0.75, spread=0.02, seed=10_000 + seed)
        outside = [each for each in repeated_figures(stored, again) if not each.is_within]
        found += any(each.title == "Throughput" for each in outside)
        assert all(each.title == "Throughput" for each in outside)
    assert found >= 95


def test_one_repeat_has_the_margin_alone() -> None:
    def one(rate: float, accuracy: float = 0.95) -> Comparison:
        return compared(run("a()", rate, accuracy=accuracy))

    for rate, accuracy, same in [
        (1000, 0.95, True),
        (1049, 0.959, True),
        (953, 0.941, True),
        (1051, 0.95, False),
        (951, 0.95, False),
        (1000, 0.961, False),
    ]:
        figures = repeated_figures(one(1000), one(rate, accuracy))
        assert all(figure.is_within for figure in figures) == same, (rate, accuracy)
    (first, *_) = repeated_figures(one(1000), one(1100))
    assert str(first) == "a() × 2: Throughput 1,100 samples/s, OUTSIDE 952 – 1,050 samples/s"


def test_what_finished_and_now_fails_or_is_not_reached_is_a_difference() -> None:
    stored = live(time_to_target=2.0)
    lost = failed(
        "out of memory", strategy="b()", kind="live", workers=2, repeat=1, seed=1, folder=""
    )
    runs = [*stored.runs]
    runs[4] = lost
    again = structs.replace(stored, runs=tuple(runs))
    assert differences_in_status(stored, stored) == ()
    assert differences_in_status(stored, again) == (
        "b() × 2, repeat 1: finished stored, failed now (out of memory)",
    )
    assert missing_figures(stored, again) == ()
    never = structs.replace(
        stored,
        runs=tuple(
            structs.replace(each, time_to_target=None) if each.strategy == "c()" else each
            for each in stored.runs
        ),
    )
    assert missing_figures(stored, never) == ("c() × 2: Time to target has no value now",)
