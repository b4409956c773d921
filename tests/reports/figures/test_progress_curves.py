"""Throughput and bytes over a run agree with its totals."""

from itertools import pairwise

import pytest
import torch

import manyhands as mh
from manyhands.reports.figures.progress_curves import bytes_curve, throughput_curve
from manyhands.reports.figures.trace_figures import traffic


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    inputs = torch.randn(400, 4, generator=torch.Generator().manual_seed(0))
    data = torch.utils.data.TensorDataset(inputs, (inputs.sum(1) > 0).long())
    job = mh.Job(
        model=lambda: torch.nn.Linear(4, 2),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=torch.nn.functional.cross_entropy,
        data=data,
        validation=data,
        measures="staleness",
        global_batch=8,
        epochs=2,
    )
    folder = tmp_path_factory.mktemp("run") / "run"
    return mh.simulate(job, "asynchronous()", workers=2, times="constant(1.0)", output=folder)


def test_throughput_adds_up_to_the_samples(run):
    points = throughput_curve(run.trace)
    begins = [(0.0, 0), *((point.seconds, point.samples) for point in points)]
    for (seconds, samples), (later, more) in pairwise(begins):
        point = points[begins.index((later, more)) - 1]
        assert point.value == pytest.approx((more - samples) / (later - seconds))
    assert points[-1].samples == run.samples


def test_bytes_grow_to_the_total(run):
    points = bytes_curve(run.trace)
    values = [point.value for point in points]
    assert len(values) >= 2
    assert values == sorted(values)
    assert values[-1] == traffic(run.trace).sent
    assert points[-1].samples == run.samples


def test_points_are_limited_and_the_last_one_stays(run):
    few = bytes_curve(run.trace, points=1)
    assert len(few) == 1
    assert few[-1] == bytes_curve(run.trace)[-1]


def test_a_run_has_the_staleness_that_was_asked_for(run):
    curves = run.curves()
    assert {*curves} == {
        "validation/accuracy",
        "validation/loss",
        "measures/staleness",
        "training/loss",
        "run/throughput",
        "run/bytes_sent",
    }
