"""Speed means the same under every strategy: whatever took less time is never called slower.

The time that a run took is measured here without the package: the job's loss function, which every
strategy calls in training and in evaluations, writes down when it was called. Evaluations take most
of that time, so a strategy that left them out of its account would be found out.
"""

import itertools
import json
from dataclasses import dataclass

import pytest

from manyhands.placements import ALL as PLACEMENTS
from manyhands.protocols import ALL as PROTOCOLS
from manyhands.reports import Comparison, Run, RunResult, measure
from manyhands.reports.comparison.standings import fields
from manyhands.reports.comparison.verdict import judge

SCRIPT = """
    import json, os, sys, time
    import torch, torch.nn.functional as F
    import manyhands as mh

    CALLS = os.open(f"calls-{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def loss(outputs, targets):
        # Workers execute the script under another name; before they start, the job is tried here.
        if __name__ != "__main__":
            os.write(CALLS, b"%f\\n" % time.monotonic())
        return F.cross_entropy(outputs, targets)

    tokens = torch.randint(0, 65, (6600, 9), generator=torch.Generator().manual_seed(0))
    data = torch.utils.data.TensorDataset(tokens[:, :-1], tokens[:, 1:])
    job = mh.Job(
        model=lambda: mh.models.GPT(length=8, width=16, layers=2, heads=2),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.01),
        loss=loss,
        data=torch.utils.data.Subset(data, range(600)),
        validation=torch.utils.data.Subset(data, range(600, 6600)),
        metrics=(),
        global_batch=16,
        epochs=3,
    )

    if __name__ == "__main__":
        for number, (strategy, workers, slow) in enumerate(json.loads(sys.argv[1])):
            begun = time.monotonic()
            mh.train(job, strategy, workers=workers, slow=slow and [slow], output=f"run-{number}")
            print("BETWEEN", json.dumps([begun, time.monotonic()]), flush=True)
"""
SAMPLES = 1800
SLOWED = ("allreduce()", 2, "all:3x")
"""In lockstep, and slower than others through computing alone."""
FAMILIES = [
    SLOWED,
    ("asynchronous()", 2, None),
    ("hogwild()", 2, None),
    ("pipeline(microbatches=2)", 2, None),
]
"""One of every way in which a run keeps account of its time."""
WRITTEN = {
    "single": ("single()", 1),
    "hybrid": ("hybrid(data=2, shard=2)", 4),
    "place": ('place(modules=["block1 on 0", "block2 on 1"])', 2),
    "pipeline": ("pipeline(microbatches=2)", 2),
    "local_sgd": ("local_sgd(every=4)", 2),
    "diloco": ("diloco(every=4)", 2),
    "hierarchical": ("hierarchical()", 4),
    "softsync": ("softsync(wait_for=1)", 2),
    "gossip": ("gossip()", 3),
}
"""How a strategy is written, and on how many workers, where its name alone and two are not it."""
CATALOG = [
    SLOWED,
    *((*WRITTEN.get(cls.name, (f"{cls.name}()", 2)), None) for cls in (*PLACEMENTS, *PROTOCOLS)),
]


@dataclass(frozen=True)
class Ran:
    """A run, and how long it took by the calls of its loss function."""

    figures: RunResult
    wall: float


def ran(started, planned) -> list[Ran]:
    text = started.text()
    periods = [json.loads(line[8:]) for line in text.splitlines() if line.startswith("BETWEEN ")]
    assert len(periods) == len(planned), text
    calls = [
        float(line)
        for path in started.folder.glob("calls-*")
        for line in path.read_text().splitlines()
    ]
    found = []
    for number, ((strategy, workers, slow), (begun, ended)) in enumerate(
        zip(planned, periods, strict=True)
    ):
        own = [at for at in calls if begun <= at <= ended]
        name = f"{strategy} slow {slow}" if slow else strategy
        trace = Run(started.folder / f"run-{number}").trace
        found.append(Ran(measure(trace, strategy=name, workers=workers), max(own) - min(own)))
    return found


def check(runs: list[Ran]) -> None:
    for run in runs:
        assert (run.figures.status, run.figures.samples) == ("finished", SAMPLES), run.figures
        assert run.figures.rate == pytest.approx(SAMPLES / run.wall, rel=0.2), run
    walls = {run.figures.strategy: run.wall for run in runs}
    # As neighbours in a comparison, and as if each had been run several times.
    repeats = tuple(
        RunResult(**{**_fields(run.figures), "workers": 2, "repeat": repeat})
        for run in runs
        for repeat in range(3)
    )
    (field,) = fields(Comparison(strategies=tuple(walls), workers=(2,), repeats=3, runs=repeats))
    contest = judge(field).contests["speed"]
    for one, other in itertools.permutations(walls, 2):
        if 1.25 * walls[one] < walls[other]:
            assert one not in contest.behind or other in contest.behind, (walls, contest)
            assert other != contest.best.strategy, (walls, contest)


def _fields(run: RunResult) -> dict[str, object]:
    return {name: getattr(run, name) for name in run.__struct_fields__}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_less_time_is_never_called_slower_in_any_family(run_script) -> None:
    started = run_script(SCRIPT, json.dumps(FAMILIES))
    assert started.finish(380) == 0, started.text()
    check(ran(started, FAMILIES))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_less_time_is_never_called_slower_in_the_whole_catalog(run_script) -> None:
    started = run_script(SCRIPT, json.dumps(CATALOG))
    assert started.finish(1780) == 0, started.text()
    check(ran(started, CATALOG))
