"""How idle the workers of a pipeline are, against what each schedule's table says.

Four workers, eight microbatches, layers that sleep: 20 ms forward, 20 ms for the gradient of their
inputs and 20 ms for that of their parameters, so that many workers need few cores. The measured
share is that of the time between the end of a worker's first step and the end of its last one that
it did not compute, by its trace.

    python -m benchmarks.bubbles [--quick]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

import manyhands as mh
from benchmarks.figures import report
from manyhands.schedules import ALL, Durations, replay

if TYPE_CHECKING:
    from manyhands.trace import Trace

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
    """The share of their time, from the end of the first step on, that workers did not compute."""
    idle = []
    for worker in trace.workers:
        ends = [span.start + span.seconds for span in worker.spans if span.step == 0]
        later = [span for span in worker.spans if span.step > 0 and span.kind != "start"]
        seconds = max(span.start + span.seconds for span in later) - max(ends)
        idle.append(1 - sum(s.seconds for s in later if s.kind == "compute") / seconds)
    return sum(idle) / len(idle)


def measure(schedule: str, folder: Path) -> dict[str, float]:
    strategy = (
        f"pipeline(stages={STAGES[schedule]}, microbatches={MICROBATCHES}, schedule={schedule})"
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
