"""Comparisons written by hand: what each strategy measured, repeat by repeat."""

from collections.abc import Sequence
from typing import Any

from manyhands.reports import Comparison, Curve, RunResult
from manyhands.reports import StalenessSummary as StalenessFigures

QUIET = (1.0, 1.004, 0.997)
"""By which factor repeats differ."""


def run(
    strategy: str,
    rate: float,
    *,
    accuracy: float = 0.97,
    repeat: int = 0,
    workers: int = 2,
    samples: int = 6000,
    shares: dict[str, float] | None = None,
    **changes: Any,
) -> RunResult:
    """A run of three evaluations, the last at its end."""
    seconds = samples / rate
    parts = (1 / 3, 2 / 3, 1.0)
    curve = Curve(
        seconds=tuple(part * seconds for part in parts),
        samples=tuple(round(part * samples) for part in parts),
        value=(accuracy - 0.2, accuracy - 0.05, accuracy),
    )
    given: dict[str, Any] = {
        "strategy": strategy,
        "kind": "live",
        "workers": workers,
        "repeat": repeat,
        "seed": repeat,
        "folder": f"runs/{strategy}-{workers}-{repeat}",
        "status": "finished",
        "samples": samples,
        "seconds": seconds,
        "start_up": 1.0,
        "rate": rate,
        "validation": {"accuracy": curve, "f1": curve, "loss": curve},
        "shares": shares
        or {
            "compute": 0.7,
            "wait": 0.1,
            "communication": 0.1,
            "data": 0.05,
            "evaluation": 0.05,
            "other": 0.0,
        },
        "sent": 1000 * samples,
        "sent_per_sample": 1000.0,
        "seen": samples,
        "repeated": 0,
        "lost": 0,
    }
    return RunResult(**(given | changes))


def repeated(strategy: str, rate: float, factors: Sequence[float] = QUIET, **of: Any):
    """As many runs as there are factors."""
    return [
        run(strategy, rate * factor, repeat=repeat, **of) for repeat, factor in enumerate(factors)
    ]


def compared(*runs: RunResult, **changes: Any) -> Comparison:
    """A comparison of these runs."""
    return Comparison(
        strategies=tuple(dict.fromkeys(run.strategy for run in runs)),
        workers=tuple(sorted({run.workers for run in runs})),
        repeats=1 + max((run.repeat for run in runs), default=0),
        runs=runs,
        **changes,
    )


STALE = StalenessFigures(mean=1.0, p99=2, most=3, updates=10, histogram={0: 3, 1: 5, 2: 1, 3: 1})
