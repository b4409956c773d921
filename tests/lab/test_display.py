"""What a comparison shows while it runs, where there is a terminal and where there is none."""

import io

from rich.console import Console

from manyhands.lab.display import ComparisonDisplay, outcome
from manyhands.lab.entrants import read_entrants
from manyhands.lab.order import turns
from manyhands.reports import Comparison, Curve, RunResult

FIRST, SECOND, THIRD = turns(read_entrants("allreduce, ssp, gossip"), [2], 1, 0)


def a_run(strategy: str = "allreduce()", **figures: object) -> RunResult:
    return RunResult(
        **{
            "strategy": strategy,
            "kind": "live",
            "workers": 2,
            "repeat": 0,
            "seed": 0,
            "folder": "",
            "status": "finished",
            "samples": 60_000,
            "seconds": 25.0,
            "rate": 2400.0,
            "validation": {"accuracy": Curve(seconds=(25.0,), samples=(60_000,), value=(0.9812,))},
            **figures,
        }
    )


def shown(
    width: int = 100, terminal: bool = False
) -> tuple[ComparisonDisplay, io.StringIO, list[float]]:
    stream, now = io.StringIO(), [0.0]
    console = Console(file=stream, width=width, force_terminal=terminal)
    return ComparisonDisplay(3, console, lambda: now[0]), stream, now


def test_lines_say_what_begins_what_came_of_it_and_how_long_it_takes() -> None:
    display, stream, now = shown()
    with display:
        display.found()
        display.begins(SECOND, Comparison())
        now[0] = 10.0
        display.progress(SECOND, "6,000 of 60,000 samples (10 %)")
        now[0] = 40.0
        display.progress(SECOND, "30,000 of 60,000 samples (50 %)")
        now[0] = 120.0
        display.made(SECOND, a_run("ssp()", time_to_target=12.0))
        display.begins(THIRD, Comparison())
        display.made(THIRD, a_run("gossip()", status="failed", words="RuntimeError: no"))
    assert stream.getvalue().splitlines() == [
        "1 of 3 runs were made before",
        "run 2 of 3: ssp() on 2 workers, repeat 1",
        "  30,000 of 60,000 samples (50 %)",
        (
            "[2/3] ssp() on 2 workers, repeat 1: 2,400 samples/s, accuracy 98.12 %, target after "
            "12.0 s, 25.0 s of training (about 2 min left)"
        ),
        "run 3 of 3: gossip() on 2 workers, repeat 1",
        "[3/3] gossip() on 2 workers, repeat 1: failed: RuntimeError: no",
    ]


def test_a_terminal_shows_the_figures_so_far_and_the_run_that_goes_on() -> None:
    display, stream, now = shown(terminal=True)
    results = Comparison(strategies=("allreduce()", "ssp()"), workers=(2,), runs=(a_run(),))
    with display:
        display.begins(SECOND, results)
        now[0] = 3.0
        display.progress(SECOND, "6,000 of 60,000 samples (10 %)")
        display._live.refresh()
    text = stream.getvalue()
    assert "run 1 of 3: ssp() on 2 workers, repeat 1 · 3.0 s · 6,000 of 60,000 samples" in text
    assert "live runs on 2 workers" in text
    assert "2,400" in text


def test_a_metric_that_is_not_finite_is_not_told() -> None:
    curve = Curve(seconds=(1.0,), samples=(1,), value=(None,))
    assert outcome(a_run(validation={"loss": curve})) == "2,400 samples/s, 25.0 s of training"
