"""The state of an optimizer for other parts of the same parameters than those it has stepped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from manyhands.parameters.layout import Fragment


def state_of(
    part: Fragment, stepped: Sequence[tuple[Fragment, Mapping[str, Any]]]
) -> dict[str, Any]:
    """The state of a part of what was stepped elementwise, each time with all of it.

    Args:
        part: the part.
        stepped: what was stepped, in order, each with its state; together they contain the part.
    """
    width = part.dtype.itemsize
    pieces = []
    for line, state in stepped:
        begin = max(part.offset, line.offset)
        end = min(part.offset + part.nbytes, line.offset + line.nbytes)
        if begin < end:
            pieces.append((line, state, (begin - line.offset) // width, (end - begin) // width))
    if not pieces:
        return {}
    found: dict[str, Any] = {}
    first_line, first_state, *_ = pieces[0]
    for key, value in first_state.items():
        if not isinstance(value, torch.Tensor):
            found[key] = value
        elif value.shape != (first_line.stop - first_line.start,):
            found[key] = value.clone()
        else:
            rows = [state[key][start : start + count] for _, state, start, count in pieces]
            found[key] = torch.cat(rows).view(part.shape)
    return found
