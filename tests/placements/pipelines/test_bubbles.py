"""Workers of a pipeline are as idle as the schedule's table says."""

import time

import pytest
import torch
from forks import forked
from torch.nn import functional

import manyhands as mh
from manyhands.schedules import ALL, Durations, replay
from manyhands.strategies import strategy
from manyhands.transport.waits import Waits

# Torch's part is loaded once, here, and the forks have it.
pytest.importorskip("manyhands.engine.pipelines")

WORKERS, MICROBATCHES, LAYERS, STEPS = 4, 8, 8, 4
PACE = 0.02
"""Seconds of a layer's forward and of each half of its backward."""


def idle_share(tmp_path, text, pace=PACE):
    """The part of a step, from end to end, that workers wait: the median over steps."""
    inputs = torch.randn(32, 8)
    job = mh.Job(
        model=lambda: mh.models.Paced(LAYERS, pace, pace, pace),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.01),
        loss=functional.mse_loss,
        data=torch.utils.data.TensorDataset(inputs, inputs),
        global_batch=32,
        epochs=1,
        metrics=(),
    )

    def work(group):
        waits = Waits(time.monotonic, lambda _: None)
        bound = strategy(text).bind(job, group, torch.device("cpu"), waits)
        ends, waited = [], []
        for _ in range(STEPS):
            bound.gradient(inputs, inputs, 1.0, len(inputs))
            bound.step(1.0)
            ends.append(time.monotonic())
            waited.append(sum(seconds for _, seconds in waits.take()))
        bound.average_buffers()
        bound.state()
        return {"idle": torch.tensor(waited[1:]) / torch.tensor(ends).double().diff()}

    made = forked(tmp_path, WORKERS, work)
    return float(torch.stack([each["idle"] for each in made]).mean(0).median())


def begins(stages):
    """Stages of equal length: this is about schedules, not about splitting."""
    each = LAYERS // stages
    names = (f'"{1 + number}"' for number in range(each, LAYERS, each))
    return f"split_points=[{', '.join(names)}]"


@pytest.mark.timed
@pytest.mark.parametrize(
    ("schedule", "stages"),
    [
        pytest.param("gpipe", 4, marks=pytest.mark.slow),
        ("one_f_one_b", 4),
        pytest.param("interleaved", 8, marks=pytest.mark.slow),
        ("zero_bubble", 4),
    ],
)
def test_the_idle_share_is_the_tables(tmp_path, schedule, stages):
    pace = PACE * LAYERS / stages
    table = ALL[schedule](stages, MICROBATCHES, WORKERS)
    expected = replay(table, Durations.even(stages, pace, pace, pace)).idle_share
    text = f"pipeline(microbatches={MICROBATCHES}, schedule={schedule}, {begins(stages)})"
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    found = idle_share(folders[0], text)
    if found > expected + 0.03:
        # Whatever else the machine did meanwhile can only add to it.
        found = min(found, idle_share(folders[1], text))
    assert found == pytest.approx(expected, abs=0.03)


STREAM = f"pipeline(microbatches={MICROBATCHES}, schedule=pipedream, {begins(WORKERS)})"


@pytest.mark.timed
def test_a_stream_never_drains(tmp_path):
    # One that drained with every batch would be idle for 0.27 of its time.
    assert idle_share(tmp_path, STREAM) < 0.11


@pytest.mark.timed
@pytest.mark.slow
def test_a_stream_is_not_idle_but_for_what_the_machine_is_late(tmp_path):
    assert idle_share(tmp_path, STREAM, pace=0.05) < 0.03
