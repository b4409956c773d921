"""Tracing of a model's forward into a list of calls, by torch.fx.

Layers and blocks are leaves; only modules that have to be split are traced. A tracer sees no
values. Where the code branches on a *shape*, the shape for an example input is used; a module that
branches on the content of a tensor cannot be traced.
"""

from __future__ import annotations

import contextlib
import operator
from typing import TYPE_CHECKING, Any, Final, cast

import torch
from torch import fx, nn

from manyhands.splitting.untouched_run import inspect_call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_CONSTRUCTORS: Final = (
    "arange",
    "empty",
    "eye",
    "full",
    "ones",
    "rand",
    "randn",
    "tensor",
    "zeros",
)
"""Functions of torch that take sizes and no tensors, which fx does not trace by itself."""

_QUESTIONS: Final = frozenset(
    {
        getattr,
        *(getattr(operator, name) for name in ("eq", "ge", "getitem", "gt", "le", "lt", "ne")),
    }
)
"""Calls without side effects."""


class Untraceable(ValueError):  # noqa: N818 - a state of a module, as its message says
    """A module's forward cannot be traced into a list of calls.

    Args:
        module: its name in the model; empty for the model itself.
        reason: why.
    """

    def __init__(self, module: str, reason: str) -> None:
        super().__init__(f"{module or 'the model'}: {reason}")
        self.module = module
        self.reason = reason


def trace(model: nn.Module, example: torch.Tensor, opened: frozenset[str]) -> fx.Graph:
    """The calls of a model's forward in order; modules are leaves unless they are in `opened`.

    `Sequential`s are always traced.

    Raises:
        Untraceable: names the module whose forward it is.
    """
    tracer = _Tracer(example, opened)
    try:
        with _seeing_constructors(tracer):
            graph = tracer.trace(model)
    except Exception as error:
        raise Untraceable(tracer.inside, _reason(error)) from error
    _forget_questions(graph)
    return graph


def _forget_questions(graph: fx.Graph) -> None:
    """Remove unused calls, such as a shape that was only compared."""
    for node in reversed(graph.nodes):
        if node.op == "call_function" and not node.users and node.target in _QUESTIONS:
            graph.erase_node(node)


class _Tracer(fx.Tracer):
    """A tracer that treats modules as leaves, and evaluates conditions on shapes."""

    def __init__(self, example: torch.Tensor, opened: frozenset[str]) -> None:
        super().__init__()
        self.inside = ""
        """The innermost module that is being traced, for error messages."""
        self._example = example
        self._opened = opened
        self._looking = False

    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        return not (type(module) is nn.Sequential or name in self._opened)

    def call_module(
        self,
        module: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if self._looking:
            return forward(*args, **kwargs)
        before, name = self.inside, self.path_of_module(module)
        if not self.is_leaf_module(module, name):
            self.inside = name
        given = super().call_module(module, forward, args, kwargs)
        # Not restored after an error: it tells where the error was raised.
        self.inside = before
        return given

    def getattr(self, name: str, value: Any, cache: dict[str, fx.Proxy]) -> Any:
        return value if self._looking else super().getattr(name, value, cache)

    def to_bool(self, proxy: fx.Proxy) -> bool:
        self._looking = True
        try:
            value = inspect_call(self.root, self._until(proxy.node), self._example)
        finally:
            self._looking = False
        if isinstance(value, torch.Tensor):
            raise fx.proxy.TraceError("it branches on the content of a tensor")
        return bool(value)

    def _until(self, node: fx.Node) -> fx.GraphModule:
        """The graph traced so far, with this node as its output."""
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        for each in self.graph.nodes:
            copies[each] = graph.node_copy(each, copies.__getitem__)
        graph.output(copies[node])
        return fx.GraphModule(self.root, graph)


@contextlib.contextmanager
def _seeing_constructors(tracer: fx.Tracer) -> Iterator[None]:
    """Context in which calls such as `torch.arange(inputs.shape[1])` can be traced."""
    kept = {name: getattr(torch, name) for name in _CONSTRUCTORS}

    def seen(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(*args: Any, **kwargs: Any) -> Any:
            given = (*args, *kwargs.values())
            if any(isinstance(value, fx.Proxy) for value in given):
                return tracer.create_proxy("call_function", make, args, kwargs)
            return make(*args, **kwargs)

        return made

    for name, make in kept.items():
        setattr(torch, name, seen(make))
    try:
        yield
    finally:
        for name, make in kept.items():
            setattr(torch, name, make)


def _reason(error: Exception) -> str:
    text = str(error).strip().splitlines()
    words = text[0] if text else type(error).__name__
    if isinstance(error, fx.proxy.TraceError) and "control flow" in words:
        return "its code depends on the content of a tensor"
    return words if isinstance(error, fx.proxy.TraceError) else f"{type(error).__name__}: {words}"


def takes_in_place(node: fx.Node, model: nn.Module) -> bool:
    """Whether a call overwrites its input."""
    if node.op == "call_module":
        return bool(getattr(model.get_submodule(cast("str", node.target)), "inplace", False))
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    overwrites = name.endswith("_") or name in {"iadd", "isub", "imul", "itruediv", "setitem"}
    return overwrites or node.kwargs.get("inplace") is True
