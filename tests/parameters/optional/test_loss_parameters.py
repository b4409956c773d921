"""Parameters of a loss, which no optimizer has: refused before they stay untrained."""

import functools
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import manyhands as mh
from manyhands.failure import Refused
from manyhands.live.agent.trial_batch import try_out

INPUTS = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
DATA = TensorDataset(INPUTS, (INPUTS.sum(1) > 0).long())


class Scaled(nn.Module):
    """A loss with a temperature that is to be learned."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(outputs * self.temperature, targets)


HEAD = nn.Linear(2, 2)
"""Both a part of a loss and, without gradients, a teacher."""


class Criterion:
    """A loss that is an object with a module."""

    def __init__(self) -> None:
        self.head = HEAD

    def compute(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.head(outputs), targets)

    __call__ = compute


def with_head(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(HEAD(outputs), targets)


def of(head: nn.Module, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(head(outputs), targets)


def with_teacher(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        taught = HEAD(outputs)
    return functional.cross_entropy(outputs, targets) + functional.mse_loss(outputs, taught)


def job(loss) -> mh.Job:
    return mh.Job(
        model=lambda: nn.Linear(4, 2),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=loss,
        data=DATA,
        global_batch=8,
        epochs=1,
    )


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (Scaled(), r"1 parameters of its own \(Scaled\)"),
        (with_head, r"2 parameters of its own \(HEAD\)"),
        (functools.partial(of, HEAD), r"2 parameters of its own \(Linear\)"),
        (Criterion(), r"2 parameters of its own \(head\)"),
        (Criterion().compute, r"2 parameters of its own \(head\)"),
    ],
)
def test_are_refused_live_and_virtually(tmp_path, loss, words):
    words += ", which are neither trained nor saved: make them a part of the model"
    with pytest.raises(Refused, match=words):
        try_out(job(loss), 2, ["cpu", "cpu"])
    with pytest.raises(ValueError, match=words):
        mh.simulate(job(loss), "asynchronous()", workers=2, output=tmp_path / "run")


def test_of_an_objective_are_refused():
    asked = replace(
        job(None or with_head),
        loss=None,
        objective=lambda model, pair: of(HEAD, model(pair[0]), pair[1]),
    )
    with pytest.raises(Refused, match=r"2 parameters of its own \(HEAD\)"):
        try_out(asked, 1, ["cpu"])


@pytest.mark.parametrize(
    "loss", [with_teacher, nn.CrossEntropyLoss(), Scaled().requires_grad_(False)]
)
def test_what_is_not_trained_on_purpose_is_not_refused(tmp_path, loss):
    try_out(job(loss), 2, ["cpu", "cpu"])
    mh.simulate(job(loss), "synchronous()", workers=2, output=tmp_path / "run")
