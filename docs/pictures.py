"""Draws the pictures of docs/strategies on the virtual cluster: `python -m docs.pictures`.

Four workers, of which the last takes twice as long, with log-normal compute times; a host for each,
links of 1 Gbit/s and 1 MB of parameters; one host for all where they share memory. The same seed
gives the same pictures, to the byte. Pipelines' schedules are drawn from their tables. The
bandwidths of docs/break-even.md are drawn from figures that were measured before.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch.utils.data import TensorDataset

import manyhands as mh
from docs import break_even
from manyhands.reports import timeline
from manyhands.reports.render.gantt import gantt
from manyhands.schedules import ALL, Durations, replay

FOLDER = Path(__file__).parent / "strategies" / "pictures"
TIMES = "lognormal(0.1, cv=0.25, slow=[slow(rank=3, factor=2.0)])"

PICTURES = {
    "single": "single()",
    "allreduce": "allreduce()",
    "fully_sharded": "fully_sharded()",
    "synchronous": "synchronous()",
    "central_storage": "central_storage()",
    "softsync": "softsync(wait_for=3)",
    "softsync_drop": "softsync(wait_for=3, late=drop)",
    "ssp": "ssp(staleness=2)",
    "asynchronous": "asynchronous()",
    "hogwild": "hogwild()",
    "averaging": "averaging(every=3)",
    "local_sgd": "local_sgd(every=3, warmup=2)",
    "diloco": "diloco(every=5)",
    "hierarchical": "hierarchical(outer=averaging(every=3))",
    "easgd": "easgd(every=2)",
    "easgd_asynchronous": "easgd(order=asynchronous, every=2)",
    "gossip": "gossip(graph=ring)",
    "gossip_asynchronous": "gossip(graph=ring, order=asynchronous)",
    "push_sum": "push_sum()",
    "broadcast": "broadcast()",
    "ensemble": "ensemble()",
}
"""By file, the strategy that it shows."""


def draw(strategy: str) -> str:
    """The timeline of a short run under a strategy."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(320, 499), torch.randint(0, 500, (320,)))
    job = mh.Job(
        model=lambda: torch.nn.Linear(499, 500),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.01),
        loss=F.cross_entropy,
        data=data,
        global_batch=32,
        epochs=1,
        seed=1,
        metrics=(),
    )
    without_servers = strategy.startswith(
        ("gossip", "push_sum", "broadcast", "ensemble", "hogwild", "single", "allreduce", "fully")
    )
    alone = strategy.startswith("single")
    one_host = alone or strategy.startswith(("central_storage", "hogwild"))
    with tempfile.TemporaryDirectory() as folder:
        run = mh.simulate(
            job,
            strategy,
            workers=1 if alone else 4,
            times=TIMES,
            # One worker alone has all samples of a batch to compute.
            slow=["all:4x"] if alone else None,
            bandwidth=None if one_host else "1gbit",
            # A server's time per update; where every worker has its own, it has no row.
            service=None if without_servers else "4ms",
            output=folder,
        )
        return timeline(run.trace)


SCHEDULES = {
    "pipeline_gpipe": ("gpipe", 4),
    "pipeline_one_f_one_b": ("one_f_one_b", 4),
    "pipeline_interleaved": ("interleaved", 8),
    "pipeline_zero_bubble": ("zero_bubble", 4),
    "pipeline_pipedream": ("pipedream", 4),
}
"""By file, the schedule that it shows, for 4 workers and 8 microbatches, and how many stages."""


def draw_schedule(schedule: str, stages: int) -> str:
    """A schedule on a clock: forward, and each half of the backward, take equally long."""
    stream = schedule == "pipedream"
    table = ALL[schedule](stages, 24 if stream else 8, 4)
    done = replay(table, Durations.even(stages, *(4 / stages,) * 3))
    title = f"{schedule}: 4 workers, {stages} stages, "
    if stream:
        # As far as the others go, of a stream that goes on.
        return gantt(f"{title}a stream of microbatches: idle only at its ends", table, done, end=33)
    return gantt(f"{title}8 microbatches: idle {100 * done.idle_share:.1f} %", table, done)


def main() -> None:
    """Draw all of them."""
    FOLDER.mkdir(exist_ok=True)
    break_even.PICTURE.write_text(break_even.draw(), "utf-8")
    print(f"{break_even.PICTURE.name}: {break_even.FIGURES.name}")
    for name, (schedule, stages) in SCHEDULES.items():
        (FOLDER / f"{name}.svg").write_text(draw_schedule(schedule, stages), "utf-8")
        print(f"{name}.svg: {schedule}")
    for name, strategy in PICTURES.items():
        path = FOLDER / f"{name}.svg"
        path.write_text(draw(strategy), "utf-8")
        print(f"{path.name}: {strategy}, {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
