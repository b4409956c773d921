"""The state of an optimizer on fragments of parameters, by the names of the parameters.

Servers and workers under a protocol step fragments, or several of them as one tensor. In a
checkpoint the state of a parameter has the parameter's name, whoever stepped which part of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from manyhands.files.checkpoints.parts import TensorPart

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from manyhands.files.checkpoints.reading import Checkpoint
    from manyhands.parameters.layout import Fragment, Layout

    Lines = Sequence[tuple[torch.nn.Parameter, Sequence[tuple[str, int, int, int]]]]
    """What an optimizer steps, and the parts of parameters in it: name, first element of the
    parameter, first element of what is stepped, and number of elements."""


def lines_of(
    stepped: Sequence[tuple[Fragment, torch.nn.Parameter]], fragments: Sequence[Fragment]
) -> Lines:
    """What an optimizer steps, with the fragments that each stretch is made of."""
    return [
        (parameter, [part for one in fragments for part in _overlap(line, one)])
        for line, parameter in stepped
    ]


def sizes_of_parameters(layout: Layout) -> dict[str, int]:
    """The number of elements of every parameter, by name."""
    sizes: dict[str, int] = {}
    for shard in layout.shards:
        for fragment in shard.parameters:
            sizes[fragment.name] = max(sizes.get(fragment.name, 0), fragment.stop)
    return sizes


def named_entries(
    optimizer: torch.optim.Optimizer, lines: Lines, sizes: dict[str, int]
) -> Iterator[TensorPart]:
    """The tensors of an optimizer's state."""
    for parameter, parts in lines:
        for key, value in optimizer.state.get(parameter, {}).items():
            if not isinstance(value, torch.Tensor):
                continue
            for name, first, at, count in parts:
                path = f"optimizer/{name}/{key}"
                if value.shape != parameter.shape:
                    yield TensorPart(path, value, tuple(value.shape), (0,) * value.dim())
                    continue
                part = value.reshape(-1)[at : at + count]
                yield TensorPart(path, part, (sizes[name],), (first,), flat=True)


def named_numbers(optimizer: torch.optim.Optimizer, lines: Lines) -> dict[str, Any]:
    """The plain numbers of an optimizer's state, by name."""
    return {
        f"optimizer/{name}/{key}": value
        for parameter, parts in lines
        for key, value in optimizer.state.get(parameter, {}).items()
        if not isinstance(value, torch.Tensor)
        for name, *_ in parts
    }


@torch.no_grad()
def load_named(optimizer: torch.optim.Optimizer, lines: Lines, stored: Checkpoint) -> None:
    """Give an optimizer the stored state of its fragments."""
    keys: dict[str, list[str]] = {}
    for path in stored.names("optimizer"):
        name, _, key = path.rpartition("/")
        keys.setdefault(name, []).append(key)
    numbers = stored.manifest.values
    for parameter, parts in lines:
        first = parts[0][0]
        for key in keys.get(first, ()):
            whole = stored.tensor(f"optimizer/{first}/{key}")
            if not whole.dim():
                optimizer.state[parameter][key] = whole
                continue
            value = torch.empty_like(parameter).reshape(-1)
            for name, begin, at, count in parts:
                whole = stored.tensor(f"optimizer/{name}/{key}").reshape(-1)
                value[at : at + count] = whole[begin : begin + count]
            optimizer.state[parameter][key] = value.view(parameter.shape)
        start = f"optimizer/{first}/"
        for path, number in numbers.items():
            if path.startswith(start):
                optimizer.state[parameter][path[len(start) :]] = number


def _overlap(line: Fragment, one: Fragment) -> Iterator[tuple[str, int, int, int]]:
    """The part of a fragment that is in a stretch, if there is one: see `Lines`."""
    size = line.dtype.itemsize
    begin = max(line.offset, one.offset)
    end = min(line.offset + line.nbytes, one.offset + one.nbytes)
    if end > begin and (line.dtype, line.group) == (one.dtype, one.group):
        first = one.start + (begin - one.offset) // size
        yield one.name, first, (begin - line.offset) // size, (end - begin) // size
