"""Plans for tensor parallelism: which layers of a model can be split among workers.

As in Megatron-LM: of some linear layers that feed another one, each worker takes a part of the
outputs (*column* parallel), and of the layer that they feed the same part of the inputs (*row*
parallel). Operations in between are computed on the parts, and only the outputs of the second layer
are summed over the workers. Attention is an example, with query, key and value in front and heads
in between, and so is a two-layer network.

Names are not used as a hint: the operations in between are found by tracing, and tried on numbers.
If parts of their inputs give the corresponding parts of their outputs, the layers can be split. A
wrong plan would train without an error, and learn something else
(`docs/decisions/0029-plans-are-tried.md`).
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import fx, nn

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


@dataclass(frozen=True)
class Pair:
    """Layers that share an input and are split by outputs, and the layer that they feed."""

    columns: tuple[str, ...]
    row: str


@dataclass(frozen=True)
class TensorPlan:
    """The layers of a model that are split among workers, by name."""

    pairs: tuple[Pair, ...] = ()
    embeddings: tuple[str, ...] = ()
    """Embeddings, split by rows of their tables."""
    logits: tuple[str, ...] = ()
    """Output layers, split by outputs, which are then gathered."""
    whole: Mapping[str, str] = field(default_factory=dict)
    """Linear layers that are not split, each with the reason."""

    @property
    def words(self) -> list[str]:
        """A summary in a few lines, for the log."""
        pairs = [f"{', '.join(pair.columns)} to {pair.row}" for pair in self.pairs]
        others = [*self.embeddings, *self.logits]
        lines = [f"split: {_some([*pairs, *others])}"] if pairs or others else []
        return lines + [f"not split: {_some(list(self.whole))}"] * bool(self.whole)


def _some(names: list[str]) -> str:
    more = f"; and {len(names) - 3} more" if len(names) > 3 else ""
    return "; ".join(names[:3]) + more


def find_plan(model: nn.Module, ways: int) -> TensorPlan:
    """Find the layers of a model that can be split among `ways` workers."""
    training = model.training
    model.eval()
    pairs: list[Pair] = []
    whole: dict[str, str] = {}
    for prefix, module, graph in _graphs(model, "", whole):
        for pair, reason in _pairs(module, graph, ways):
            named = Pair(tuple(prefix + name for name in pair.columns), prefix + pair.row)
            if reason is None:
                pairs.append(named)
            else:
                whole = dict.fromkeys([*named.columns, named.row], reason) | whole
    model.train(training)
    split = {name for pair in pairs for name in (*pair.columns, pair.row)}
    layers = dict(model.named_modules())
    tables = {name: layer for name, layer in layers.items() if isinstance(layer, nn.Embedding)}
    # A layer with as many outputs as an embedding has rows computes logits.
    words = {layer.num_embeddings for layer in tables.values()}
    logits = [
        name
        for name, layer in layers.items()
        if isinstance(layer, nn.Linear) and name not in split and layer.out_features in words
    ]
    embeddings = [
        name
        for name, table in tables.items()
        if any(layers[one].out_features == table.num_embeddings for one in logits)
    ]
    for name, layer in layers.items():
        if isinstance(layer, nn.Linear) and name not in {*split, *logits, *whole}:
            whole[name] = "no other linear layer feeds it or is fed by it"
    whole = {name: why for name, why in whole.items() if name not in {*split, *logits}}
    return TensorPlan(tuple(pairs), tuple(embeddings), tuple(logits), whole)


def given_plan(model: nn.Module, lines: Sequence[str]) -> TensorPlan:
    """The plan given as text: `*.mlp.up column`, `*.mlp.down row`.

    Raises:
        ValueError: a line is malformed or matches no layer.
        TypeError: a line names a module that cannot be split.
    """
    columns: list[str] = []
    rows: list[str] = []
    tables: list[str] = []
    layers = dict(model.named_modules())
    for line in lines:
        pattern, _, how = line.rpartition(" ")
        named = [name for name in layers if fnmatch.fnmatchcase(name, pattern.strip())]
        if how not in ("column", "row") or not named:
            raise ValueError(
                f"plan line {line!r} does not match {type(model).__name__}: write the name of a "
                "layer, with * as a wildcard, and 'column' or 'row'"
            )
        for name in named:
            if isinstance(layers[name], nn.Embedding):
                tables.append(name)
            elif isinstance(layers[name], nn.Linear):
                (columns if how == "column" else rows).append(name)
            else:
                kind = type(layers[name]).__name__
                raise TypeError(f"{name} is a {kind}: a plan splits linear layers and embeddings")
    pairs = [Pair((name,), "") for name in columns] + [Pair((), name) for name in rows]
    return TensorPlan(tuple(pairs), tuple(tables))


def _graphs(
    module: nn.Module, prefix: str, whole: dict[str, str]
) -> Iterator[tuple[str, nn.Module, fx.Graph]]:
    """The largest modules that can be traced, with their graphs."""
    if not any(isinstance(one, nn.Linear) for one in module.modules()):
        return
    try:
        graph = fx.Tracer().trace(module)
    except Exception as error:  # noqa: BLE001 - tracing raises many kinds of errors
        reason = str(error).splitlines()[0].split(". ")[0]
        for name, child in module.named_children():
            if isinstance(child, nn.Linear):
                whole[prefix + name] = f"{type(module).__name__} cannot be traced: {reason}"
            yield from _graphs(child, f"{prefix}{name}.", whole)
        return
    yield prefix, module, graph


def _pairs(module: nn.Module, graph: fx.Graph, ways: int) -> Iterator[tuple[Pair, str | None]]:
    """Candidates of layers to split together, each with the reason if they cannot be split."""
    layers = dict(module.named_modules())
    calls: dict[fx.Node, nn.Linear] = {}
    for node in graph.nodes:
        layer = layers.get(str(node.target)) if node.op == "call_module" else None
        if isinstance(layer, nn.Linear):
            calls[node] = layer
    targets = [node.target for node in calls]
    taken: set[fx.Node] = set()
    for node, layer in calls.items():
        if node in taken:
            continue
        between = _Between(module, node, calls)
        if not between.columns or taken & set(between.columns):
            continue
        pair = Pair(tuple(str(one.target) for one in between.columns), str(node.target))
        reason = between.reason or _divides(between.columns, calls, layer, ways)
        if any(targets.count(one.target) > 1 for one in (*between.columns, node)):
            reason = "it is called more than once"
        reason = reason or between.try_out(ways)
        if reason is None:
            taken |= {node, *between.columns}
        yield pair, reason


def _divides(
    columns: Sequence[fx.Node], calls: Mapping[fx.Node, nn.Linear], row: nn.Linear, ways: int
) -> str | None:
    for size in (*(calls[one].out_features for one in columns), row.in_features):
        if size % ways:
            return f"{size} outputs are not divisible by {ways} workers"
    return None


class _Between:
    """The operations between some linear layers and the layer that they feed."""

    def __init__(self, module: nn.Module, row: fx.Node, calls: Mapping[fx.Node, nn.Linear]) -> None:
        self.columns: list[fx.Node] = []
        self.reason: str | None = None
        self._module = module
        self._row = row
        self._calls = calls
        self._inner: set[fx.Node] = set()
        self._walk(row.all_input_nodes[0])
        inside = {*self._inner, *self.columns, row}
        leaks = [one for one in (*self._inner, *self.columns) if not set(one.users) <= inside]
        if self.columns and any(not _counts(user) for one in leaks for user in one.users):
            self.reason = "an operation in between is also used elsewhere"
        # In the order in which they are called.
        self.columns.sort(key=list(calls).index)

    def _walk(self, node: fx.Node) -> None:
        if node in self._calls:
            if node not in self.columns:
                self.columns.append(node)
            return
        if node in self._inner or _counts(node):
            return
        if node.op in ("placeholder", "get_attr"):
            self.reason = f"it also depends on {node.target}"
            return
        self._inner.add(node)
        for before in node.all_input_nodes:
            self._walk(before)

    def try_out(self, ways: int) -> str | None:
        """Why parts of the inputs do not give parts of the outputs; None if they do."""
        reasons = []
        # A sequence, then a single vector: the operations may expect either.
        for shape in ((1, 4), (4,)):
            try:
                return self._try_out(ways, shape)
            except Exception as error:  # noqa: BLE001 - user code may raise anything
                reasons.append(str(error).splitlines()[0])
        return f"it cannot be computed on a part of its inputs: {reasons[0]}"

    def _try_out(self, ways: int, shape: tuple[int, ...]) -> str | None:
        source = torch.Generator().manual_seed(0)
        given = {
            node: torch.randn(
                (*shape, self._calls[node].out_features), generator=source, dtype=torch.float64
            )
            for node in self.columns
        }
        expected = self._compute(given).chunk(ways, dim=-1)
        for part in range(ways):
            parts = {node: tensor.chunk(ways, dim=-1)[part] for node, tensor in given.items()}
            computed = self._compute(parts)
            if computed.shape != expected[part].shape:
                return "a part of its inputs gives outputs of another shape"
            if not torch.allclose(computed, expected[part]):
                return "its parts depend on each other"
        return None

    def _compute(self, given: Mapping[fx.Node, torch.Tensor]) -> torch.Tensor:
        """The inputs of the row layer for these outputs of the column layers."""
        values: dict[fx.Node, Any] = dict(given)
        like = next(iter(given.values()))
        modules = dict(self._module.named_modules())

        def value(node: fx.Node) -> Any:
            if node not in values:
                values[node] = compute(node)
            return values[node]

        def compute(node: fx.Node) -> Any:
            if node.op == "placeholder" or node in self._calls:
                # Only its shape is used.
                width = self._calls[self.columns[0]].in_features
                return like.new_zeros(*like.shape[:-1], width)
            arguments, options = fx.map_arg((node.args, node.kwargs), value)
            if node.op == "call_module":
                return modules[str(node.target)](*arguments, **options)
            if node.op == "call_method":
                return getattr(arguments[0], str(node.target))(*arguments[1:], **options)
            if node.op == "call_function" and callable(node.target):
                return node.target(*arguments, **options)
            raise ValueError(f"it depends on {node.target}")

        with torch.no_grad():
            computed: torch.Tensor = value(self._row.all_input_nodes[0])
        return computed


def _counts(node: fx.Node) -> bool:
    """Whether a call only reads a size."""
    if node.op == "call_method" and node.target in ("size", "dim", "numel"):
        return True
    if node.op != "call_function":
        return False
    if node.target is getattr:
        return node.args[1] in ("shape", "ndim", "device", "dtype", "is_cuda")
    return bool(node.all_input_nodes) and all(_counts(one) for one in node.all_input_nodes)
