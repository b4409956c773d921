"""Four stages and four microbatches under GPipe and PipeDream: pictures, and bubbles of live runs.

    python examples/cases/pipelines.py --output pictures

draws both schedules, trains under both on four worker processes, and compares how idle the workers
were with the schedule's table. The layers sleep in place of computing, 40 ms for a forward and for
each half of a backward, so that four workers do not need four cores. `--keep` stores the figures in
`results/pipelines.json`, and `--steps 3` is a short version.
"""

import argparse
import statistics
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from case_results import keep, table

import manyhands as mh
from manyhands.reports.render.gantt import gantt
from manyhands.schedules import ALL, Durations, replay

STAGES = MICROBATCHES = 4
PACE = 0.04
BATCH = 4 * MICROBATCHES
SCHEDULES = ("gpipe", "pipedream")

_inputs = torch.randn(1024, 8, generator=torch.Generator().manual_seed(0))
job = mh.Job(
    model=lambda: mh.models.Paced(STAGES, PACE, PACE, PACE),
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.01),
    loss=F.mse_loss,
    data=torch.utils.data.TensorDataset(_inputs, _inputs),
    global_batch=BATCH,
    samples=11 * BATCH,
    metrics=(),
)


def draw(schedule: str) -> str:
    """The schedule as SVG, as `manyhands schedule` draws it."""
    table_, done = _replayed(schedule, MICROBATCHES)
    title = f"{schedule}: {STAGES} stages on {STAGES} workers, {MICROBATCHES} microbatches"
    return gantt(f"{title}: idle {100 * done.idle_share:.1f} %", table_, done)


def in_theory(schedule: str) -> float:
    """The idle share by the schedule's table; that of a stream in the long run."""
    if schedule != "pipedream":
        return _replayed(schedule, MICROBATCHES)[1].idle_share
    short, long = (_replayed(schedule, number)[1].makespan for number in (64, 128))
    return 1 - 64 * 3 / (long - short)


def _replayed(schedule, microbatches):
    table_ = ALL[schedule](STAGES, microbatches, STAGES)
    return table_, replay(table_, Durations.even(STAGES, 1, 1, 1))


def strategy(schedule: str) -> str:
    """One sleeping layer per stage; the first stage also has the layer that precedes them."""
    points = ", ".join(f'"{layer}"' for layer in range(2, STAGES + 1))
    return f"pipeline(microbatches={MICROBATCHES}, schedule={schedule}, split_points=[{points}])"


def measured(run: mh.Run) -> float:
    """The share of a step in which a worker did not compute: mean of workers, median of steps."""
    idle = [_idle(worker) for worker in run.trace.workers]
    return statistics.median(statistics.mean(step) for step in zip(*idle, strict=True))


def _idle(worker) -> list[float]:
    ends: dict[int, float] = {}
    busy: dict[int, float] = {}
    for span in worker.spans:
        if span.kind != "start":
            ends[span.step] = max(ends.get(span.step, 0.0), span.start + span.seconds)
            computed = span.seconds if span.kind == "compute" else 0.0
            busy[span.step] = busy.get(span.step, 0.0) + computed
    steps = sorted(ends)
    return [1 - busy[step] / (ends[step] - ends[before]) for before, step in pairwise(steps)]


def figures(schedule: str, run: mh.Run) -> dict[str, object]:
    """What the table and `results` have of a run."""
    stale = mh.reports.staleness_by_process(run.trace)
    return {
        "schedule": schedule,
        "samples": run.samples,
        "table": in_theory(schedule),
        "measured": measured(run),
        "seconds": round(run.seconds, 2),
        "staleness": {name: spread.mean for name, spread in stale.items()},
    }


def printed(runs: list[dict]) -> str:
    """The table: a row for each schedule."""
    rows = []
    for run in runs:
        stale = [f"{mean:.1f}" for _, mean in sorted(run["staleness"].items())]
        rows.append(
            [
                f"`{run['schedule']}`",
                f"{100 * run['table']:.1f} %",
                f"{100 * run['measured']:.1f} %",
                ", ".join(stale) or "none: lockstep",
            ]
        )
    header = ["schedule", "idle by the table", "idle, measured", "staleness of stages 0 to 3"]
    return table(header, rows)


def main() -> None:
    """Draw both schedules, train under both, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="a folder for the pictures")
    parser.add_argument("--steps", type=int, default=11, help="global batches of each run")
    parser.add_argument("--keep", action="store_true", help="store the figures in results")
    asked = parser.parse_args()
    runs = []
    for schedule in SCHEDULES:
        if asked.output is not None:
            asked.output.mkdir(parents=True, exist_ok=True)
            (asked.output / f"{schedule}-4x4.svg").write_text(draw(schedule), encoding="utf-8")
        run = mh.train(job, strategy(schedule), workers=STAGES, samples=asked.steps * BATCH)
        runs.append(figures(schedule, run))
    print(printed(runs))
    if asked.keep:
        print(f"figures: {keep('pipelines', {'runs': runs}).name}")


if __name__ == "__main__":
    main()
