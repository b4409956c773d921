"""`manyhands check` on real processes."""

import sys

import pytest

SCRIPT = """
    import torch, torch.nn.functional as F
    import manyhands as mh

    drawn = torch.Generator().manual_seed(0)
    inputs = torch.randn(48, 6, generator=drawn)
    job = mh.Job(
        model=lambda: torch.nn.Sequential(*(make() for make in LAYERS)),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=F.cross_entropy,
        data=torch.utils.data.TensorDataset(inputs, torch.randint(0, 3, (48,), generator=drawn)),
        global_batch=12,
        epochs=1,
    )
    LAYERS = [
        lambda: torch.nn.Linear(6, 8),
        *([lambda: torch.nn.BatchNorm1d(8)] if NORM else []),
        lambda: torch.nn.Linear(8, 3),
    ]
"""


def checked(run_script, start, norm, *options):
    text = SCRIPT.replace("NORM", str(norm))
    folder = run_script(text).folder
    command = (sys.executable, "-m", "manyhands", "check", str(folder / "script.py"), *options)
    started = start(*command)
    return started.finish(170), started.text()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_sound_job_is_equal(run_script, start):
    code, text = checked(run_script, start, False)
    assert code == 0, text
    assert "allreduce() on 2 workers trains as one worker does: after 8 steps in float64" in text


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_batch_norm_is_named(run_script, start):
    code, text = checked(run_script, start, True, "--strategy", "synchronous()", "--workers", "3")
    assert code == 1, text
    assert "synchronous() on 3 workers does not train as one worker does, from step 1 on" in text
    assert "1 (BatchNorm1d) normalises with" in text
