"""Evaluations by samples and by seconds, and measures, on real processes."""

import sys
import textwrap
from pathlib import Path

import pytest

from manyhands.reports import Run, measure
from manyhands.reports.figures.outcome import settings

SCRIPT = """
    import sys, time
    import torch, torch.nn.functional as F
    import manyhands as mh

    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(600, 8, generator=generator)
    targets = (inputs.sum(1) > 0).long()
    data = torch.utils.data.TensorDataset(inputs, targets)

    def loss(outputs, targets):
        time.sleep(0.005)
        return F.cross_entropy(outputs, targets)

    job = mh.Job(
        model=lambda: torch.nn.Linear(8, 2),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=loss,
        data=data,
        validation=torch.utils.data.Subset(data, range(64)),
        global_batch=20,
        epochs=2,
    )
"""


@pytest.fixture
def train(start, tmp_path: Path):
    """Train the script's job on two workers."""
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT), encoding="utf-8")
    manyhands = (sys.executable, "-m", "manyhands")

    def run(*options: str) -> Run:
        given = ("--workers", "2", *options, "--output", "run")
        started = start(*manyhands, "train", "script.py", *given)
        assert started.finish(90) == 0, started.text()
        return Run(tmp_path / "run")

    return run


@pytest.mark.parametrize(
    "strategy", ["allreduce()", pytest.param("asynchronous()", marks=pytest.mark.slow)]
)
def test_evaluations_and_measures_every_so_many_samples(train, strategy: str) -> None:
    measures = ("--measures", "gradient_norm,staleness")
    run = train("--strategy", strategy, "--evaluate-every", "250", *measures)
    told = {setting.name: setting.value for setting in settings(run.trace)}
    assert told["evaluate_every"] == "250 samples"
    assert told["measures"] == "gradient_norm, staleness"
    made = measure(run.trace)
    evaluated = (260, 500, 600, 760, 1000, 1200)
    assert made.validation["accuracy"].samples == evaluated
    norms = made.measures["gradient_norm"]
    assert norms.samples == evaluated
    assert all(0 < value < 10 for value in norms.value)
    assert norms.value[-1] < norms.value[0], "the gradient becomes smaller"
    if strategy == "asynchronous()":
        stale = made.measures["staleness"]
        assert set(stale.samples) <= set(evaluated)
        assert all(0 <= value <= 2 for value in stale.value)
    else:
        assert "staleness" not in made.measures


@pytest.mark.parametrize(
    "strategy", ["allreduce()", pytest.param("asynchronous()", marks=pytest.mark.slow)]
)
def test_an_evaluation_every_so_many_seconds(train, strategy: str) -> None:
    """All workers of a collective evaluate at the same step, or the run would not end."""
    run = train("--strategy", strategy, "--evaluate-every", "0.1s")
    curve = measure(run.trace).validation["accuracy"]
    assert {600, 1200} <= set(curve.samples)
    assert len(curve.samples) > 2
    assert list(curve.samples) == sorted(set(curve.samples))
