"""The speedup table, against figures worked out by hand."""

import pytest

from manyhands.lab.scaling import markdown, remarks, scaling
from manyhands.reports import Comparison, Machine, RunResult


def a_run(workers: int, repeat: int, rate: float, status="finished"):
    return RunResult(
        strategy="allreduce()",
        kind="live",
        workers=workers,
        repeat=repeat,
        seed=repeat,
        folder="",
        status=status,
        rate=rate,
    )


def a_comparison(*runs: RunResult, repeats: int = 3) -> Comparison:
    return Comparison(
        strategies=("allreduce()",),
        workers=(1, 2, 4),
        repeats=repeats,
        budget="1 epoch (60,000 samples)",
        machine=Machine(cpu="A processor", cores=2),
        runs=runs,
    )


FULL = a_comparison(
    *(a_run(1, repeat, rate) for repeat, rate in enumerate((1000, 800, 1200))),
    *(a_run(2, repeat, rate) for repeat, rate in enumerate((1800, 1600, 2040))),
    *(a_run(4, repeat, rate) for repeat, rate in enumerate((2000, 2400, 1200))),
)


def test_speedups_are_those_within_a_repeat() -> None:
    one, two, four = scaling(FULL)
    assert one.speedup is not None
    assert (one.speedup.low, one.speedup.value, one.speedup.high) == (1, 1, 1)
    assert two.speedup is not None
    assert (two.speedup.low, two.speedup.value, two.speedup.high) == (1.7, 1.8, 2.0)
    assert four.speedup is not None
    assert (four.speedup.low, four.speedup.value, four.speedup.high) == (1, 2, 3)
    assert four.efficiency is not None
    assert four.efficiency.value == pytest.approx(0.5)
    assert markdown(scaling(FULL)).splitlines() == [
        "| workers | samples/s | speedup | efficiency |",
        "| ---: | ---: | ---: | ---: |",
        "| 1 | 1,000 (800–1,200) | 1.00 | 100 % |",
        "| 2 | 1,800 (1,600–2,040) | 1.80 (1.70–2.00) | 90 % (85 %–100 %) |",
        "| 4 | 2,000 (1,200–2,400) | 2.00 (1.00–3.00) | 50 % (25 %–75 %) |",
    ]
    assert "lowest and highest of 3 runs" in remarks(FULL)


def test_what_failed_is_left_out_and_nothing_is_made_up() -> None:
    results = a_comparison(
        a_run(1, 0, 1000),
        a_run(1, 1, 0, status="failed"),
        a_run(2, 1, 1900),
        repeats=2,
    )
    one, two, four = scaling(results)
    assert one.speedup is not None
    assert two.rate is not None
    assert two.speedup is None, "no repeat has both"
    assert four.rate is None
    assert markdown([two, four]).splitlines()[2:] == ["| 2 | 1,900 | – | – |", "| 4 | – | – | – |"]
