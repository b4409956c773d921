"""A model as a chain of pieces, each of which takes one tensor from the previous piece."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise, takewhile
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

from manyhands.splitting.section import Section
from manyhands.splitting.tracing import Untraceable, takes_in_place, trace
from manyhands.splitting.untouched_run import inspect_call

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


@dataclass(frozen=True, eq=False)
class Chain:
    """A model split at every point where a single tensor passes.

    Pieces are numbered in order; a *section* is a range of consecutive pieces.
    """

    model: nn.Module
    names: tuple[str, ...]
    """The name of every piece: the module, or modules, that it consists of."""
    whole: Mapping[str, str]
    """Modules that could not be traced, and why."""
    shared: Mapping[str, tuple[str, ...]]
    """Parameters that several layers share, with the layers."""
    together: Sequence[Sequence[str]]
    """Groups of layers that have to stay in one piece."""
    _calls: tuple[tuple[tuple[fx.Node, ...], ...], ...]
    """The calls of every piece, in training and, if they differ, in evaluation."""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def first_layers(self) -> tuple[str, ...]:
        """By piece, the layer or call that it begins with."""
        return tuple(_modules(piece)[0] for piece in self._calls[0])

    @property
    def loose(self) -> list[str]:
        """Parameters that the model itself uses, and none of its layers."""
        nodes = (node for piece in self._calls[0] for node in piece if node.op == "get_attr")
        names = dict.fromkeys(str(node.target) for node in nodes)
        return [name for name in names if isinstance(attrgetter(name)(self.model), nn.Parameter)]

    def section(self, first: int, stop: int) -> Section:
        """The pieces from `first` to before `stop`, as a module.

        Its parameters and buffers are those of the model, under the same names.
        """
        graphs = [
            _graph([node for piece in pieces[first:stop] for node in piece])
            for pieces in self._calls
        ]
        return Section(*(fx.GraphModule(self.model, graph) for graph in graphs))


class Unsplittable(ValueError):  # noqa: N818 - what the model is
    """A model cannot be split into the stages; the message names the module and the reason."""


def chain(
    model: nn.Module,
    example: torch.Tensor,
    wanted: int = 1,
    together: Sequence[Sequence[str]] = (),
) -> Chain:
    """The model's pieces, at least `wanted` of them if possible.

    The model itself and its `Sequential`s are traced; other modules, the largest first, only while
    there are too few pieces. Layers that must stay `together`, by name, are in one piece with all
    calls between them.

    Raises:
        Unsplittable: the model's own forward cannot be traced.
    """
    opened, whole, tried = frozenset({""}), dict[str, str](), set[str]()
    try:
        graphs = _trace(model, example, opened)
    except Untraceable as error:
        raise Unsplittable(
            f"{type(model).__name__} cannot be split into stages, because "
            f"{_named(model, error.module)} cannot be traced: {error.reason}; "
            "let its forward only call its layers, and move other code into layers"
        ) from error
    borders = _borders(model, graphs[0], together)
    while len(borders) + 1 < wanted:
        name = _next_to_open(model, graphs[0], tried)
        if name is None:
            break
        tried.add(name)
        try:
            finer = _trace(model, example, opened | {name})
        except Untraceable as error:
            whole[name] = error.reason
            continue
        if len(more := _borders(model, finer[0], together)) > len(borders):
            graphs, borders, opened = finer, more, opened | {name}
    floating = _floating(model, graphs[0], example)
    at = [number for number, passing in borders.items() if passing in floating]
    calls = tuple(_between([*graph.nodes], at) for graph in graphs)
    nodes = [*graphs[0].nodes]
    shared = {
        name: tuple(dict.fromkeys(str(nodes[user].target) for user in users))
        for name, users in _shared(model, nodes).items()
    }
    apart = [layers for layers in together if len(_calls_of(nodes, layers)) > 1]
    return Chain(model, _names(calls[0]), whole, shared, apart, calls)


def check_stages(pieces: Chain, stages: int) -> None:
    """Raise Unsplittable if there are more stages than pieces."""
    if len(pieces) >= stages:
        return
    number = f"{len(pieces)} stage{'' if len(pieces) == 1 else 's'}"
    reasons = [
        f"{name} is used by {' and by '.join(users)}, which stay together"
        for name, users in pieces.shared.items()
    ]
    reasons += [
        f"{_named(pieces.model, name)} stays whole: {reason}"
        for name, reason in pieces.whole.items()
    ]
    reasons += [
        f"{', '.join(layers)} are split together and stay together" for layers in pieces.together
    ]
    why = f" ({'; '.join(reasons)})" if reasons else ""
    raise Unsplittable(
        f"{type(pieces.model).__name__} can be split into at most {number} "
        f"({', '.join(pieces.names)}), got {stages}{why}: use at most {number}"
    )


def _trace(model: nn.Module, example: torch.Tensor, opened: frozenset[str]) -> list[fx.Graph]:
    """The calls in training, and those in evaluation if they differ."""
    modes = {module: module.training for module in model.modules()}
    graphs = []
    try:
        for mode in (True, False):
            model.train(mode)
            graphs.append(trace(model, example, opened))
    finally:
        for module, mode in modes.items():
            module.training = mode
    training, evaluating = (
        [(node.op, node.name, str(node.args), str(node.kwargs)) for node in graph.nodes]
        for graph in graphs
    )
    if [call[:2] for call in training] != [call[:2] for call in evaluating]:
        raise Untraceable("", "it calls other layers in training than in evaluation")
    return graphs[:1] if training == evaluating else graphs


def _between(nodes: list[fx.Node], borders: Sequence[int]) -> tuple[tuple[fx.Node, ...], ...]:
    return tuple(tuple(nodes[begin:end]) for begin, end in pairwise([0, *borders, len(nodes)]))


def _borders(
    model: nn.Module, graph: fx.Graph, together: Sequence[Sequence[str]]
) -> dict[int, fx.Node]:
    """The nodes before which a single value passes, by number, each with that value."""
    nodes = [*graph.nodes]
    at = {node: number for number, node in enumerate(nodes)}
    last_use = {node: max((at[user] for user in node.users), default=-1) for node in nodes}
    spans = [*_shared(model, nodes).values(), *(_calls_of(nodes, some) for some in together)]
    layers = [number for number, node in enumerate(nodes) if node.op in ("call_module", "get_attr")]
    borders = {}
    # Function calls belong to the previous layer, so boundaries are right before layers.
    for number in layers[1:]:
        passing = [
            node for node in nodes[:number] if node.op != "get_attr" and last_use[node] >= number
        ]
        # A parameter that is used before and after must be in one stage.
        inside = any(min(users) < number <= max(users) for users in spans if users)
        if len(passing) != 1 or inside or nodes[number - 1].op == "get_attr":
            continue
        # A stage's input needs a gradient, and must not be overwritten.
        if not any(takes_in_place(user, model) for user in passing[0].users):
            borders[number] = passing[0]
    return borders


def _shared(model: nn.Module, nodes: Sequence[fx.Node]) -> dict[str, list[int]]:
    """Tensors of several calls: by name, the numbers of the calls."""
    named = (*model.named_buffers(), *model.named_parameters())
    names = {id(tensor): name for name, tensor in named}
    used: dict[str, list[int]] = {}
    for number, node in enumerate(nodes):
        for tensor in _tensors(model, node):
            used.setdefault(names[id(tensor)], []).append(number)
    return {name: users for name, users in used.items() if len(users) > 1}


def _calls_of(nodes: Sequence[fx.Node], layers: Sequence[str]) -> list[int]:
    """The numbers of the calls of these layers, or of modules that contain them."""
    return [
        number
        for number, node in enumerate(nodes)
        if node.op == "call_module"
        and any(f"{layer}.".startswith(f"{node.target}.") for layer in layers)
    ]


def _tensors(model: nn.Module, node: fx.Node) -> Iterator[torch.Tensor]:
    """A call's parameters, and the layer's buffers, which it may write to."""
    if node.op == "call_module":
        layer = model.get_submodule(str(node.target))
        yield from layer.parameters()
        yield from layer.buffers()
    for argument in node.all_input_nodes:
        if argument.op == "get_attr":
            value = attrgetter(str(argument.target))(model)
            if isinstance(value, nn.Parameter):
                yield value


def _floating(model: nn.Module, graph: fx.Graph, example: torch.Tensor) -> set[fx.Node]:
    """The nodes whose value is one floating-point tensor."""
    found: dict[fx.Node, bool] = {}

    class Note(fx.Interpreter):
        def run_node(self, node: fx.Node) -> Any:
            value = super().run_node(node)
            found[node] = isinstance(value, torch.Tensor) and value.is_floating_point()
            return value

    # On the graph itself: a GraphModule has a copy with other nodes.
    note = Note(model, graph=graph)
    inspect_call(model, note.run, example)
    return {node for node, yes in found.items() if yes and node.op != "placeholder"}


def _graph(nodes: list[fx.Node]) -> fx.Graph:
    """Consecutive nodes as a separate graph, with one input and one output."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    inside = set(nodes)
    if nodes[0].op != "placeholder":
        given = next(_given(nodes, inside))
        copies[given] = graph.placeholder("inputs")
    for node in nodes:
        for argument in node.all_input_nodes:
            # A buffer that an earlier section reads as well.
            if argument.op == "get_attr" and argument not in copies:
                copies[argument] = graph.node_copy(argument)
        copies[node] = graph.node_copy(node, copies.__getitem__)
    if nodes[-1].op != "output":
        graph.output(copies[next(_taken(nodes, inside))])
    return graph


def _given(nodes: list[fx.Node], inside: set[fx.Node]) -> Iterator[fx.Node]:
    """The values from earlier nodes."""
    for node in nodes:
        for argument in node.all_input_nodes:
            if argument not in inside and argument.op != "get_attr":
                yield argument


def _taken(nodes: list[fx.Node], inside: set[fx.Node]) -> Iterator[fx.Node]:
    """The values that later nodes use."""
    for node in nodes:
        if node.op != "get_attr" and any(user not in inside for user in node.users):
            yield node


def _next_to_open(model: nn.Module, graph: fx.Graph, tried: set[str]) -> str | None:
    """The largest module that is called as a whole and has submodules."""
    sizes: dict[str, int] = {}
    for node in graph.nodes:
        name = str(node.target)
        if node.op == "call_module" and name not in tried:
            module = model.get_submodule(name)
            if any(module.children()):
                sizes[name] = sum(parameter.numel() for parameter in module.parameters())
    return max(sizes, key=lambda name: sizes[name], default=None)


def _names(pieces: Sequence[Sequence[fx.Node]]) -> tuple[str, ...]:
    """The name of each piece: its module, or the first of its modules."""
    modules = [_modules(piece) for piece in pieces]
    common = [_common(own) for own in modules]
    times = Counter(common)
    return tuple(
        prefix if prefix and times[prefix] == 1 else own[0] if prefix else f"{own[0]}…{own[-1]}"
        for own, prefix in zip(modules, common, strict=True)
    )


def _modules(piece: Sequence[fx.Node]) -> list[str]:
    names = [str(node.target) for node in piece if node.op in ("call_module", "get_attr")]
    return names or [node.name for node in piece if node.op != "placeholder"]


def _common(names: Sequence[str]) -> str:
    """The innermost module that contains all of these; the module itself, if there is one."""
    if len(set(names)) == 1:
        return names[0]
    parts = zip(*(name.split(".")[:-1] for name in names), strict=False)
    return ".".join(same[0] for same in takewhile(lambda parts: len(set(parts)) == 1, parts))


def _named(model: nn.Module, name: str) -> str:
    kind = type(model.get_submodule(name)).__name__
    return f"{name} ({kind})" if name else f"its forward ({kind})"
