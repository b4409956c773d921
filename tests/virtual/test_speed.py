"""On a virtual clock, too, whatever took less time is never called slower."""

import itertools

import pytest
import torch
from virtual_jobs import a_job

import manyhands as mh
from manyhands.protocols import ALL
from manyhands.reports import Comparison, RunResult, measure
from manyhands.reports.comparison.standings import fields
from manyhands.reports.comparison.verdict import judge

WRITTEN = {
    "softsync": "softsync(wait_for=2)",
    "averaging": "averaging(every=2)",
    "local_sgd": "local_sgd(every=4)",
    "diloco": "diloco(every=4)",
}
TIMES = ("lognormal(0.02, cv=0.5)", "lognormal(0.03, cv=0.5)")


def test_less_virtual_time_is_never_called_slower_under_any_protocol(tmp_path) -> None:
    inputs = torch.randn(200, 4, generator=torch.Generator().manual_seed(5))
    job = a_job(600, validation=torch.utils.data.TensorDataset(inputs, inputs[:, :2]), epochs=3)
    runs: list[RunResult] = []
    walls: dict[str, float] = {}
    for number, (cls, times) in enumerate(itertools.product(ALL, TIMES)):
        name, folder = f"{cls.name} {times}", tmp_path / str(number)
        text = WRITTEN.get(cls.name, f"{cls.name}()")
        done = mh.simulate(job, text, workers=4, times=times, output=folder)
        # Without links the first batch begins at 0, and the run ends with its training.
        (walls[name],) = (
            event.at
            for process in done.trace.processes
            for event in process.events
            if event.what == "end"
        )
        found = measure(done.trace, strategy=name, workers=4, folder="")
        assert (found.samples, found.lost) == (1800, 0), name
        assert found.rate == pytest.approx(1800 / walls[name]), name
        fields_of = {field: getattr(found, field) for field in found.__struct_fields__}
        runs += (RunResult(**{**fields_of, "repeat": repeat}) for repeat in range(3))
    (field,) = fields(Comparison(strategies=tuple(walls), workers=(4,), runs=tuple(runs)))
    contest = judge(field).contests["speed"]
    assert contest.best.strategy == min(walls, key=walls.__getitem__)
    for one, other in itertools.permutations(walls, 2):
        if 1.06 * walls[one] < walls[other]:
            assert one not in contest.behind or other in contest.behind
