"""What an optimizer couples is found on the instance: by class, by hook, by setting, by dtype."""

from __future__ import annotations

import types

import pytest
import torch
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR

from manyhands.job.optimizers import SeveralOptimizers
from manyhands.parameters.coupling import check_step, coupling_of


def model() -> nn.Module:
    return nn.Sequential(nn.Conv1d(2, 8, 3), nn.Linear(64, 40), nn.LayerNorm(40), nn.Linear(40, 3))


def normalize(optimizer, *_) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad /= parameter.grad.norm() + 1e-12


def clip_all(optimizer, *_) -> None:
    whole = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    nn.utils.clip_grad_norm_(whole, 0.5)


def negate(optimizer, *_) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad.neg_()


class Normalized(optim.SGD):
    def step(self, closure=None):
        normalize(self)
        return super().step(closure)


class DecaysMatrices(optim.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.dim() > 1:
                    parameter.grad.add_(parameter.detach(), alpha=0.1)
        return super().step(closure)


class Switched(optim.SGD):
    """As SGD, unless a group says otherwise."""

    def step(self, closure=None):
        for group in self.param_groups:
            if group.get("normalize"):
                normalize(types.SimpleNamespace(param_groups=[group]))
        return super().step(closure)


class Noisy(optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.detach().add_(torch.randn_like(parameter), alpha=0.1)


class Renamed(optim.AdamW):
    """Nothing else."""


def hooked(hook, *, after: bool = False, cls=optim.SGD, **settings):
    def make(parameters):
        made = cls(parameters, lr=0.1, **settings)
        (made.register_step_post_hook if after else made.register_step_pre_hook)(hook)
        return made

    return make


def patched(parameters):
    made = optim.SGD(parameters, lr=0.1)
    before = made.step

    def step(closure=None):
        normalize(made)
        return before(closure)

    made.step = step
    return made


def scheduled(parameters):
    made = optim.AdamW(parameters)
    StepLR(made, 3)
    return made


def grouped(parameters):
    first, *others = parameters
    return Switched([{"params": others}, {"params": [first], "normalize": True}], lr=0.1)


def matrices(parameters):
    return optim.Muon([one for one in parameters if one.dim() == 2])


CASES = {
    **{
        cls.__name__: (cls, "element")
        for cls in (
            *(optim.AdamW, optim.Adagrad, optim.Adadelta, optim.Adamax, optim.NAdam),
            *(optim.RAdam, optim.RMSprop, optim.Rprop, optim.ASGD, optim.SGD, Renamed),
        )
    },
    "lr of 0": (lambda p: optim.SGD(p, lr=0.0, momentum=0.9), "element"),
    "lr as tensor": (lambda p: optim.Adam(p, lr=torch.tensor(0.01)), "element"),
    "foreach": (lambda p: optim.AdamW(p, foreach=True), "element"),
    "fused": (lambda p: optim.AdamW(p, fused=True), "element"),
    "decay": (lambda p: optim.SGD(p, momentum=0.9, nesterov=True, weight_decay=0.1), "element"),
    "scheduler": (scheduled, "element"),
    "elementwise hook": (hooked(negate), "element"),
    "counting hook": (hooked(lambda *_: None, after=True), "element"),
    "no step": (lambda p: Switched(p, lr=0.1), "element"),
    "setting of a group": (grouped, "tensor"),
    "pre-hook": (hooked(normalize), "tensor"),
    "replaced step": (patched, "tensor"),
    "subclass": (lambda p: Normalized(p, lr=0.1), "tensor"),
    "by number of dims": (lambda p: DecaysMatrices(p, lr=0.1), "tensor"),
    "Adafactor": (optim.Adafactor, "tensor"),
    "Muon": (matrices, "tensor"),
    "norm of all": (hooked(clip_all), "all"),
    "random": (lambda p: Noisy(p, lr=0.1), "all"),
    "LBFGS": (optim.LBFGS, "all"),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    ("device", "dtype"),
    [("cpu", torch.float64), ("meta", torch.float32), ("cpu", torch.bfloat16)],
)
def test_a_trial_finds_what_is_coupled_and_leaves_nothing(name, device, dtype) -> None:
    make, expected = CASES[name]
    made = make(list(model().to(device, dtype).parameters()))
    parameters = [list(map(id, group["params"])) for group in made.param_groups]
    values = [one.detach().clone() for group in made.param_groups for one in group["params"]]
    before, drawn = repr(made.state_dict()), torch.random.get_rng_state()
    assert coupling_of(made) == expected
    assert repr(made.state_dict()) == before
    assert torch.equal(torch.random.get_rng_state(), drawn)
    assert [list(map(id, group["params"])) for group in made.param_groups] == parameters
    if device == "cpu":
        now = [one for group in made.param_groups for one in group["params"]]
        assert all(torch.equal(one, other) for one, other in zip(now, values, strict=True))


def test_own_counts_of_an_optimizer_are_as_before() -> None:
    class Counting(optim.SGD):
        steps, seen = 0, ()

        def step(self, closure=None):
            self.steps += 1
            self.counts["all"] = self.counts.get("all", 0) + 1
            self.param_groups[0]["k"] = self.param_groups[0].get("k", 0) + 1
            return super().step(closure)

    made = Counting(model().parameters(), lr=0.1)
    made.counts = counts = {}
    assert coupling_of(made) == "element"
    assert made.counts is counts
    assert (made.steps, counts, "k" in made.param_groups[0]) == (0, {}, False)


def test_of_several_optimizers_the_most_coupled_one_counts() -> None:
    one, other = model(), model()
    both = {"a": optim.AdamW(one.parameters()), "b": Normalized(other.parameters(), lr=0.1)}
    assert coupling_of(SeveralOptimizers(both)) == "tensor"


def test_a_step_that_needs_a_closure_is_refused_and_one_that_takes_it_is_not() -> None:
    with pytest.raises(TypeError, match="LBFGS evaluates the loss several times"):
        check_step(optim.LBFGS(model().parameters()))
    for make, _ in CASES.values():
        if make is not optim.LBFGS:
            check_step(make(list(model().parameters())))
