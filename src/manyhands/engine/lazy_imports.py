"""Parts that torch imports when they are first needed: later, or not at all.

Making and stepping an optimizer imports `torch._dynamo`, for the case that a step is compiled. It
takes a process more than a second, and a run does it in several. Before it is imported nothing can
be compiled; so until then optimizers need none of it.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

if TYPE_CHECKING:
    from collections.abc import Callable

DYNAMO = "torch._dynamo"
"""What DDP, FSDP and DTensor import when they are first used."""
_DISABLED = "__dynamo_disable"
"""Where torch keeps, at a function that is not to be compiled, what it calls in its place."""


def defer_dynamo() -> None:
    """Have torch's optimizers do without `torch._dynamo` as long as nothing else has imported it.

    Without effect where torch is written otherwise than is known here, or has imported it.
    """
    if DYNAMO in sys.modules:
        return
    for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict"):
        outer = getattr(Optimizer, name)
        inner = getattr(outer, "__wrapped__", None)
        if inner is not None and not hasattr(inner, _DISABLED):
            setattr(inner, _DISABLED, _not_compiled(outer, inner))
    for found in vars(torch.optim).values():
        if not isinstance(found, type) or not issubclass(found, Optimizer):
            continue
        step: Any = vars(found).get("step")
        inner = getattr(step, "__wrapped__", None)
        # The name of torch's wrapper that turns gradients off; a class of its own may have none.
        if inner is not None and getattr(step, "__code__", inner.__code__).co_name == "_use_grad":
            found.step = _stepped(step, inner)  # type: ignore[method-assign]


def _not_compiled(outer: Callable[..., Any], inner: Callable[..., Any]) -> Callable[..., Any]:
    """What is called in the place of a method that torch does not compile."""

    def call(*args: Any, **options: Any) -> Any:
        if DYNAMO not in sys.modules:
            return inner(*args, **options)
        if getattr(inner, _DISABLED, None) is call:
            delattr(inner, _DISABLED)
        return outer(*args, **options)

    return call


def _stepped(outer: Callable[..., Any], inner: Callable[..., Any]) -> Callable[..., Any]:
    """A step of an optimizer, with gradients on if it is differentiable and else off."""

    @functools.wraps(inner)
    def step(self: Optimizer, *args: Any, **options: Any) -> Any:
        if DYNAMO in sys.modules:
            return outer(self, *args, **options)
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(self.defaults["differentiable"])
        try:
            return inner(self, *args, **options)
        finally:
            torch.set_grad_enabled(before)

    return step
