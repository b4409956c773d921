"""Jobs of every kind of optimizer, and the same training in a plain PyTorch loop, in float64.

`tests/virtual/test_same_mathematics.py` and `tests/live/runs/test_same_mathematics.py` train them
under strategies that have to equal the loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import LRScheduler

import manyhands as mh
from manyhands.sampling.division import part
from manyhands.sampling.permutation import permutation

if TYPE_CHECKING:
    from collections.abc import Callable

SAMPLES, BATCH, EPOCHS, SEED = 26, 8, 2, 5
_drawn = torch.Generator().manual_seed(3)
INPUTS = torch.randn(SAMPLES, 6, generator=_drawn, dtype=torch.float64)
TARGETS = torch.randint(0, 3, (SAMPLES,), generator=_drawn)
F64 = {"dtype": torch.float64}


def plain_model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8, **F64), nn.Tanh(), nn.Linear(8, 3, **F64))


class Partly(nn.Module):
    """A model with a layer that is never used, and one that is used for some batches."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 4, **F64), nn.Linear(4, 3, **F64)
        self.never, self.some = nn.Linear(4, 4, **F64), nn.Linear(4, 4, **F64)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(inputs))
        return self.last(self.some(hidden) if inputs.sum() > 1 else hidden)


class Never(Partly):
    """A model with layers that are never used."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(inputs)))


def normalize(optimizer: Any, *_: object) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad.div_(parameter.grad.norm() + 1e-12)


def shrink(optimizer: Any, *_: object) -> None:
    with torch.no_grad():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.mul_(0.999)


def clip_all(optimizer: Any, *_: object) -> None:
    nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], 0.2)


class Normalized(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        normalize(self)
        return super().step(closure)


class Scaled(torch.optim.SGD):
    """SGD with a value of its own in every group."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(group.get("scale", 1.0))
        return super().step(closure)


class Everything(LRScheduler):
    """A scheduler that changes every number of every group, as a function of its steps."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._first = [
            {k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups
        ]
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        return [rate * 0.9**self.last_epoch for rate in self.base_lrs]

    def step(self, epoch: int | None = None) -> None:
        super().step(epoch)
        at = self.last_epoch
        for group, first in zip(self.optimizer.param_groups, self._first, strict=True):
            if "betas" in first:
                one, other = first["betas"]
                group["betas"] = (one * 0.95**at, other)
                group["eps"] = first["eps"] * 10**at
            if "momentum" in first:
                group["momentum"] = 0.1 * at
            if "scale" in first:
                group["scale"] = 1.0 + at
            group["weight_decay"] = 0.05 * at


def of(cls: Any, **settings: Any) -> Callable[[nn.Module], torch.optim.Optimizer]:
    return lambda model: cls(model.parameters(), **settings)


def hooked(hook: Any, *, after: bool = False) -> Callable[[nn.Module], torch.optim.Optimizer]:
    def make(model: nn.Module) -> torch.optim.Optimizer:
        made = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        (made.register_step_post_hook if after else made.register_step_pre_hook)(hook)
        return made

    return make


def patched(model: nn.Module) -> torch.optim.Optimizer:
    made = torch.optim.SGD(model.parameters(), lr=0.05)
    before = made.step

    def step(closure: Any = None) -> Any:
        normalize(made)
        return before(closure)

    made.step = step  # type: ignore[method-assign]
    return made


def groups(model: nn.Module) -> torch.optim.Optimizer:
    weights = [one for one in model.parameters() if one.dim() > 1]
    biases = [one for one in model.parameters() if one.dim() == 1]
    parts = [{"params": weights, "weight_decay": 0.1}, {"params": biases, "lr": 0.03}]
    return torch.optim.AdamW(parts, lr=0.01)


def scaled(model: nn.Module) -> torch.optim.Optimizer:
    return Scaled([{"params": list(model.parameters()), "scale": 1.0}], lr=0.05)


@dataclass(frozen=True)
class Case:
    """A job, apart from its data."""

    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    model: Callable[[], nn.Module] = plain_model
    settings: dict[str, Any] = field(default_factory=dict)
    tolerance: float = 1e-9
    """Larger for an optimizer that computes in a shorter dtype, where tensors are divided."""


SGD = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}
ADAM = {"lr": 0.01, "weight_decay": 0.1}
_SCHEDULED = {"lr_scheduler": Everything}
CASES = {
    "sgd": Case(of(torch.optim.SGD, **SGD)),
    "adamw": Case(of(torch.optim.AdamW, **ADAM)),
    "rate as tensor": Case(of(torch.optim.Adam, lr=torch.tensor(0.01))),
    "pre-hook": Case(hooked(normalize)),
    "post-hook": Case(hooked(shrink, after=True)),
    "hook on all": Case(hooked(clip_all)),
    "subclass": Case(of(Normalized, lr=0.05)),
    "patched": Case(patched),
    "muon": Case(lambda m: torch.optim.Muon([p for p in m.parameters() if p.dim() == 2], lr=0.02)),
    "adafactor": Case(of(torch.optim.Adafactor, lr=0.05)),
    "lbfgs": Case(of(torch.optim.LBFGS, lr=0.05)),
    "groups": Case(groups, settings={"clip": 0.3}),
    "partial": Case(lambda m: torch.optim.SGD(m[2].parameters(), lr=0.1), settings={"clip": 0.1}),
    "never used": Case(of(torch.optim.AdamW, **ADAM), Never, {"clip": 0.5}),
    "never used, sgd": Case(of(torch.optim.SGD, **SGD), Never),
    "sometimes used": Case(of(torch.optim.AdamW, **ADAM), Partly, {"clip": 0.5}),
    "sometimes used, sgd": Case(of(torch.optim.SGD, **SGD), Partly),
    "scheduled sgd": Case(of(torch.optim.SGD, **SGD), settings=_SCHEDULED),
    "scheduled adamw": Case(of(torch.optim.AdamW, **ADAM), settings=_SCHEDULED),
    "scheduled own value": Case(scaled, settings=_SCHEDULED),
    "scheduled, never used": Case(of(torch.optim.AdamW, **ADAM), Never, _SCHEDULED),
}


def job_of(name: str) -> mh.Job:
    """The job of a case."""
    case = CASES[name]
    return mh.Job(
        model=case.model,
        optimizer=case.optimizer,
        loss=functional.cross_entropy,
        data=torch.utils.data.TensorDataset(INPUTS, TARGETS),
        global_batch=BATCH,
        epochs=EPOCHS,
        seed=SEED,
        metrics=(),
        **case.settings,
    )


def by_hand(name: str, workers: int) -> dict[str, torch.Tensor]:
    """A case in plain PyTorch; a parameter has a gradient if a worker's part of the batch has."""
    case = CASES[name]
    torch.manual_seed(SEED)
    model = case.model()
    optimizer = case.optimizer(model)
    made = case.settings.get("lr_scheduler")
    scheduler = None if made is None else made(optimizer)
    for epoch in range(EPOCHS):
        order = permutation(SAMPLES, SEED, epoch)
        for start in range(0, SAMPLES, BATCH):
            batch = order[start : start + BATCH]
            optimizer.zero_grad()
            model.zero_grad()
            for rank in range(workers):
                mine = batch[part(len(batch), rank, workers)]
                loss = functional.cross_entropy(model(INPUTS[mine]), TARGETS[mine])
                (loss * len(mine) / len(batch)).backward()
            if "clip" in case.settings:
                stepped = [one for group in optimizer.param_groups for one in group["params"]]
                nn.utils.clip_grad_norm_(stepped, case.settings["clip"])
            rates = [group["lr"] for group in optimizer.param_groups]
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * len(batch) / BATCH
            optimizer.step()
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
            if scheduler is not None:
                scheduler.step()
    return {key: value.detach() for key, value in model.state_dict().items()}
