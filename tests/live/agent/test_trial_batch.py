"""A job that will fail is refused, with a reason, before any process is started."""

import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from manyhands.failure import Refused
from manyhands.files.checkpoint import load_state, save_model
from manyhands.job import Job
from manyhands.live.agent.trial_batch import LARGEST, try_out

INPUTS = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
CLASSES = TensorDataset(INPUTS, (INPUTS.sum(1) > 0).long())
VALUES = TensorDataset(INPUTS, INPUTS.sum(1, keepdim=True))


def job(**changes: Any) -> Job:
    given: dict[str, Any] = {
        "model": lambda: nn.Linear(4, 2),
        "optimizer": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        "loss": functional.cross_entropy,
        "data": CLASSES,
        "global_batch": 16,
        "epochs": 1,
    }
    return Job(**(given | changes))


def attempt(one: Job, devices: tuple[str, ...] = ("cpu", "cpu")) -> None:
    try_out(one, len(devices), devices)


def test_a_sound_job_is_left_as_it_is() -> None:
    state = torch.random.get_rng_state()
    attempt(job(validation=CLASSES))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_the_default_metric_of_a_regression_is_its_loss() -> None:
    regression = job(
        model=lambda: nn.Linear(4, 1), loss=functional.mse_loss, data=VALUES, validation=VALUES
    )
    attempt(regression)
    assert regression.metric_objects == ()
    assert [metric.name for metric in job(validation=CLASSES).metric_objects] == ["accuracy"]


def test_one_metric_may_be_given_without_a_list() -> None:
    assert [metric.name for metric in job(metrics="f1").metric_objects] == ["f1"]


def test_a_target_of_a_metric_that_a_regression_does_not_have_is_refused() -> None:
    regression = job(
        model=lambda: nn.Linear(4, 1),
        loss=functional.mse_loss,
        data=VALUES,
        validation=VALUES,
        target="accuracy >= 0.9",
    )
    with pytest.raises(Refused, match=r"target 'accuracy >= 0.9' names no metric .* it has loss"):
        attempt(regression)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"model": lambda: nn.Linear(5, 2)},
            r"fails in model\(inputs\) on a training batch \(inputs float32 \[8, 4\]\)",
        ),
        (
            {"data": VALUES},
            r"outputs float32 \[8, 2\], targets float32 \[8, 1\]\).*Nothing was started",
        ),
        (
            {"loss": lambda outputs, _: outputs.sum(1)},
            "the loss must be a scalar tensor",
        ),
        (
            {"validation": VALUES, "metrics": "accuracy", "loss": lambda out, _: out.sum()},
            r"the metric 'accuracy' on a validation batch .*metrics=\(\) omits it",
        ),
        (
            {"data": [torch.ones(4)] * 8},
            r"each sample of the data must be a pair \(input, target\)",
        ),
    ],
)
def test_what_fails_on_the_first_batch_is_refused(changes, words) -> None:
    with pytest.raises(Refused, match=words):
        attempt(job(**changes))


def test_a_parameter_that_is_not_the_models_is_refused() -> None:
    temperature = nn.Parameter(torch.ones(3))
    one = job(optimizer=lambda m: torch.optim.SGD([*m.parameters(), temperature], lr=0.5))
    words = r"the optimizer has 1 parameters that are not the model's \(of shape \[3\]\)"
    for devices in (("cpu",), ("cuda:0",)):
        with pytest.raises(Refused, match=words):
            attempt(one, devices)


class Spectral(nn.Linear):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__(4, 2)
        self.register_buffer("phases", torch.ones(3, dtype=dtype))


class Extra(nn.Linear):
    def __init__(self, state: object) -> None:
        super().__init__(4, 2)
        self.state = state

    def get_extra_state(self) -> object:
        return self.state

    def set_extra_state(self, state: object) -> None:
        self.state = state


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: Spectral(torch.complex128), "'phases' has the type torch.complex128"),
        (lambda: Extra({"a": 1}), "'_extra_state' is a dict, but a model file stores only tensors"),
    ],
)
def test_a_model_that_cannot_be_saved_is_refused_at_the_start(model, words) -> None:
    with pytest.raises(Refused, match=words):
        attempt(job(model=model))


@pytest.mark.parametrize(
    "dtype", [torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16], ids=str
)
def test_every_type_that_a_file_can_hold_is_saved(tmp_path, dtype) -> None:
    model = Spectral(dtype)
    save_model(model, tmp_path / "model.safetensors")
    phases = load_state(tmp_path / "model.safetensors")["phases"]
    assert phases.dtype == dtype
    assert phases.view(torch.uint8).tolist() == model.phases.view(torch.uint8).tolist()


def test_a_tensor_as_extra_state_is_saved(tmp_path) -> None:
    attempt(job(model=lambda: Extra(torch.ones(2))))
    save_model(Extra(torch.ones(2)), tmp_path / "model.safetensors")
    assert load_state(tmp_path / "model.safetensors")["_extra_state"].tolist() == [1.0, 1.0]


def test_a_large_model_is_only_laid_out() -> None:
    built = []

    def model() -> nn.Module:
        made = nn.Linear(4, LARGEST)
        built.append(made.weight.device.type)
        return made

    attempt(job(model=model))
    assert built == ["meta"]


SCRIPT = """
import torch, torch.nn.functional as F
import manyhands as mh

inputs = torch.randn(64, 4)
job = mh.Job(
    model=lambda: torch.nn.Linear(4, 2),
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    loss=F.cross_entropy, data=torch.utils.data.TensorDataset(inputs, inputs.sum(1)),
    global_batch=16, epochs=1,
)

def loop(trainer):
    pass

if __name__ == "__main__":
    import sys
    if sys.argv[1:] == ["loop"]:
        mh.train(job, "synchronous()", workers=2, loop=loop)
    mh.train(job, "synchronous()", workers=2)
"""


def test_nothing_is_left_of_a_run_that_is_refused(start, tmp_path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    wrong = start(sys.executable, "script.py")
    loop = start(sys.executable, "script.py", "loop")
    assert wrong.finish() == 1
    assert loop.finish() == 1
    assert "Refused: the job fails in loss(outputs, targets) on a training batch" in wrong.text()
    assert "synchronous() has a training loop of its own and cannot use loop=" in loop.text()
    assert loop.worker(0) is None
    assert wrong.worker(0) is None
    assert not [*(tmp_path / "runs").iterdir()]
