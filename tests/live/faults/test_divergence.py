"""A run that diverges fails, and says where."""

import re
import sys

import pytest

from manyhands.reports import Run

SCRIPT = """
import os, torch, torch.nn.functional as F
import manyhands as mh

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        made = torch.Generator().manual_seed(index)
        values = torch.randn(4, generator=made)
        broken = os.environ.get("BROKEN", "none")
        is_broken = broken in ("all", str(index))
        return values * (float("nan") if is_broken else 1.0), int(values.sum() > 0)

job = mh.Job(
    model=lambda: torch.nn.Linear(4, 2),
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    loss=F.cross_entropy, data=Rows(), global_batch=8, epochs=4, metrics=(),
    stop_on_nan=os.environ.get("GOES_ON") is None,
)
"""


def train(start, tmp_path, strategy, **environment):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = (sys.executable, "-m", "manyhands", "train", "script.py", "--output", "out")
    return start(*command, "--strategy", strategy, "--workers", "2", **environment)


@pytest.mark.parametrize("strategy", ["allreduce()", "asynchronous()"])
def test_a_sample_that_is_not_a_number_ends_the_run_and_is_named(start, tmp_path, strategy) -> None:
    run = train(start, tmp_path, strategy, BROKEN="20")
    assert run.finish() == 1, run.text()
    first = next(line for line in run.text().splitlines() if line.startswith("manyhands"))
    assert first.startswith("manyhands: diverged: the training loss became NaN at sample "), first
    assert "on worker" in first
    assert "whose parameters" not in first, "the worker that had the sample is named"
    assert "Traceback" not in run.text()


@pytest.mark.parametrize(
    "strategy", ["synchronous()", pytest.param("allreduce()", marks=pytest.mark.slow)]
)
def test_a_run_that_goes_on_leaves_the_sample_out(start, tmp_path, strategy) -> None:
    run = train(start, tmp_path, strategy, BROKEN="20", GOES_ON="1")
    assert run.finish() == 0, run.text()
    lost = 16 if strategy == "synchronous()" else 32
    assert f"{256 - lost} seen, 0 repeated, {lost} lost" in run.text()
    assert " had NaN and " in run.text()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["synchronous()", "allreduce()"])
def test_a_run_whose_losses_are_all_not_finite_has_failed(start, tmp_path, strategy) -> None:
    run = train(start, tmp_path, strategy, BROKEN="all", GOES_ON="1")
    assert run.finish() == 1, run.text()
    assert "1 host: failed: diverged: the " in run.text().replace("\n  ", " ")


SPIKES = """
import os, pathlib, torch, torch.nn.functional as F
import manyhands as mh

source = torch.Generator().manual_seed(0)
inputs = torch.randn(400, 4, generator=source)
targets = (inputs.sum(1) > 0).long()
targets[21] += 2

def loss(outputs, targets):
    # 1e38 times as large with the sample 21: once, or always.
    value = F.cross_entropy(outputs, targets % 2)
    spiked = pathlib.Path("spiked")
    if torch.is_grad_enabled() and bool((targets > 1).any()) and not spiked.exists():
        spiked.touch() if os.environ["SPIKES"] == "once" else None
        return value * 1e38
    return value

class Deep(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(4)])

    def forward(self, values):
        return self.layers(values)

job = mh.Job(
    model=Deep,
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    loss=loss, data=torch.utils.data.TensorDataset(inputs, targets),
    global_batch=8, epochs=1, metrics=(),
)
"""


def spike(start, tmp_path, strategy, *options, spikes="once"):
    (tmp_path / "script.py").write_text(SPIKES)
    command = (sys.executable, "-m", "manyhands", "train", "script.py", "--output", "out")
    about = ("--strategy", strategy, "--workers", "2", *options)
    return start(*command, *about, SPIKES=spikes)


@pytest.mark.parametrize(
    ("strategy", "checkpoint"),
    [
        ("synchronous()", "1 steps"),
        pytest.param("allreduce()", "1 steps", marks=pytest.mark.slow),
        pytest.param("ssp()", "4 steps", marks=pytest.mark.slow),
        pytest.param("zero()", "2 steps in memory", marks=pytest.mark.slow),
        pytest.param("diloco(every=3)", "3 steps", marks=pytest.mark.slow),
    ],
)
def test_a_run_that_diverges_once_goes_back_to_a_checkpoint(
    start, tmp_path, strategy, checkpoint
) -> None:
    run = spike(start, tmp_path, strategy, "--checkpoint", checkpoint)
    assert run.finish() == 0, run.text()
    told = next(line for line in run.text().splitlines() if line.startswith("diverged: the "))
    assert " at sample " in told
    assert "; all go back to the last checkpoint" in told
    assert "400 seen, 0 repeated, 0 lost" in run.text()
    assert Run(tmp_path / "out").status == "finished"
    final = Run(tmp_path / "out").state_dict()
    assert all(float(one.abs().max()) < 100 for one in final.values())


@pytest.mark.parametrize(
    "strategy", ["allreduce()", pytest.param("synchronous()", marks=pytest.mark.slow)]
)
def test_a_run_that_diverges_again_at_the_same_place_ends(start, tmp_path, strategy) -> None:
    run = spike(start, tmp_path, strategy, "--checkpoint", "40 samples", spikes="always")
    assert run.finish() == 1, run.text()
    assert run.text().count("all go back to the last checkpoint") == 1
    last = run.text().rsplit("manyhands: diverged: ", 1)[1]
    assert "the run had gone back to the checkpoint after " in last
    assert "and diverged again" in last
    assert "Traceback" not in run.text()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["allreduce()", "synchronous()"])
@pytest.mark.parametrize("options", [(), ("--checkpoint", "1s in memory")])
def test_a_run_that_diverges_without_a_checkpoint_names_the_remedies(
    start, tmp_path, strategy, options
) -> None:
    run = spike(start, tmp_path, strategy, *options)
    assert run.finish() == 1, run.text()
    last = run.text().rsplit("manyhands: diverged: ", 1)[1]
    for remedy in ("lower the learning rate", "Job(clip=...)", "--checkpoint 10min"):
        assert remedy in last


@pytest.mark.parametrize(
    "strategy", ["allreduce()", pytest.param("synchronous()", marks=pytest.mark.slow)]
)
def test_a_run_that_diverged_is_resumed_from_before_it(start, tmp_path, strategy) -> None:
    """With a checkpoint after every step, the last one has parameters of some 1e37."""
    run = spike(start, tmp_path, strategy, "--checkpoint", "1 steps", spikes="always")
    assert run.finish() == 1, run.text()
    last = run.text().rsplit("manyhands: diverged: ", 1)[1]
    at = int(re.search(r" at sample ([\d,]+)", last)[1].replace(",", ""))
    newest = max(int(path.name) for path in (tmp_path / "out" / "checkpoints").iterdir())
    # The one after the step that did the damage may not have been written when the run ended.
    left_out = newest > at - 8
    (tmp_path / "spiked").touch()
    again = spike(
        start, tmp_path, strategy, "--checkpoint", "1 steps", "--resume", "out", spikes="once"
    )
    assert again.finish() == 0, again.text()
    told = again.text()
    taken = int(re.search(r"continues from \S+ \((\d+) samples", told.replace("\n", " "))[1])
    assert taken <= at - 8
    assert ("later checkpoints, up to" in told) == left_out, told
    assert ("they may have the damage" if left_out else "is from before it") in told
    final = Run(tmp_path / "out").state_dict()
    assert all(float(one.abs().max()) < 100 for one in final.values())
    kept = {int(path.name) for path in (tmp_path / "out" / "checkpoints").iterdir()}
    assert max(kept) > taken
