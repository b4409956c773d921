"""How idle the workers of a pipeline are, against what each schedule's table says.

Four workers, eight microbatches, layers that sleep: 20 ms forward, 20 ms for the gradient of their
inputs and 20 ms for that of their parameters, so that many workers need few cores. The measured
share is the part of a step, from the end of the one before to its own, in which a worker did not
compute, by its trace.

    python -m benchmarks.bubbles [--quick]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

import manyhands as mh
from benchmarks.figures import report
from manyhands.schedules import ALL, Durations, replay

if TYPE_CHECKING:
    from manyhands.trace import ProcessTrace, Trace

WORKERS, MICROBATCHES, LAYERS = 4, 8, 8
PACE = 0.02
STAGES = {
    "gpipe": 4,
    "one_f_one_b": 4,
    "interleaved": 8,
    "zero_bubble": 4,
    "pipedream": 4,
}
"""By schedule, into how many stages the layers are split; in the order that theory says."""

_inputs = torch.randn(32 * 64, 8, generator=torch.Generator().manual_seed(0))
job = mh.Job(
    model=lambda: mh.models.Paced(LAYERS, PACE, PACE, PACE),
    optimizer=lambda module: torch.optim.SGD(module.parameters(), lr=0.01),
    loss=F.mse_loss,
    data=torch.utils.data.TensorDataset(_inputs, _inputs),
    global_batch=32,
    samples=32 * (4 if "--quick" in sys.argv else 11),
    metrics=(),
)


def in_theory(schedule: str) -> float:
    """The idle share that the table says; of a stream, what it comes to when that is long."""
    stages = STAGES[schedule]
    pace = PACE * LAYERS / stages
    durations = Durations.even(stages, pace, pace, pace)
    if schedule != "pipedream":
        return replay(ALL[schedule](stages, MICROBATCHES, WORKERS), durations).idle_share
    short, long = (
        replay(ALL[schedule](stages, number, WORKERS), durations).makespan
        for number in (8 * MICROBATCHES, 16 * MICROBATCHES)
    )
    return 1 - 8 * MICROBATCHES * 3 * pace / (long - short)


def measured(trace: Trace) -> float:
    """The share of a step, from end to end, in which workers did not compute: the median step's."""
    idle = [_idle(worker) for worker in trace.workers]
    return statistics.median(statistics.mean(step) for step in zip(*idle, strict=True))


def _idle(worker: ProcessTrace) -> list[float]:
    """The same of one worker, for every step but the first."""
    ends: dict[int, float] = {}
    busy: dict[int, float] = {}
    for span in worker.spans:
        if span.kind != "start":
            ends[span.step] = max(ends.get(span.step, 0.0), span.start + span.seconds)
            computed = span.seconds if span.kind == "compute" else 0.0
            busy[span.step] = busy.get(span.step, 0.0) + computed
    steps = sorted(ends)
    return [1 - busy[step] / (ends[step] - ends[before]) for before, step in pairwise(steps)]


def measure(schedule: str, folder: Path) -> dict[str, float]:
    # Stages of equal length by hand: this is about schedules, not about splitting.
    each = LAYERS // STAGES[schedule]
    begins = ", ".join(f'"{1 + number}"' for number in range(each, LAYERS, each))
    strategy = (
        f"pipeline(microbatches={MICROBATCHES}, schedule={schedule}, split_points=[{begins}])"
    )
    run = mh.train(job, strategy, workers=WORKERS, output=folder / schedule)
    return {"table": in_theory(schedule), "measured": measured(run.trace)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    parser.add_argument("--only", choices=STAGES, help="one schedule")
    chosen = parser.parse_args()
    figures: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        for schedule in STAGES:
            if chosen.only in (None, schedule):
                shares = measure(schedule, Path(folder))
                figures[schedule] = shares
                print(
                    f"{schedule:12} table {100 * shares['table']:5.1f} %   "
                    f"measured {100 * shares['measured']:5.1f} %   "
                    f"difference {100 * (shares['measured'] - shares['table']):+5.1f} points"
                )
    report("bubbles", figures)


if __name__ == "__main__":
    main()
