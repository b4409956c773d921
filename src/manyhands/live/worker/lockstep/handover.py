"""Values and tensors sent from one worker to all others of its group, without pickle.

The structure travels as JSON, tensors follow as bytes in the order in which they occur. A receiver
knows how much it may get: sizes are compared with limits before memory is allocated.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from manyhands.transport.collectives import Group

_STRUCTURE_LIMIT = 64 << 20
"""Bytes of the longest structure."""
_AT_ONCE = 16 << 20
"""Bytes of small tensors that are sent together."""
_DTYPES = {
    str(one).removeprefix("torch."): one
    for one in vars(torch).values()
    if isinstance(one, torch.dtype)
}


def hand_over(
    group: Group, donor: int, give: Callable[[], Any] | None, limit: int
) -> tuple[Any, list[torch.Tensor]]:
    """Send a value from one worker of a group to the others; all must call it.

    Args:
        group: the workers.
        donor: rank in the group of the worker whose value is sent.
        give: on the donor, returns the value; None on the others.
        limit: bytes of tensors that the others accept.

    Returns:
        The value, in which tensors are new ones, and its tensors. On the donor, its own.

    Raises:
        TypeError: the value holds an object that cannot be sent.
        ValueError: the value is larger than a limit.
    """
    tensors: list[torch.Tensor] = []
    text = b""
    if give is not None:
        value = give()
        text = json.dumps(_plain(value, tensors)).encode()
    length = torch.tensor([len(text)], dtype=torch.int64)
    # The size goes first, so that a receiver checks it before it allocates anything.
    group.broadcast(length, donor)
    size = int(length)
    if size > _STRUCTURE_LIMIT:
        raise ValueError(
            f"a state's structure has {size:,} bytes, the limit is {_STRUCTURE_LIMIT:,}"
        )
    body = torch.frombuffer(bytearray(text.ljust(size, b" ")), dtype=torch.uint8)
    group.broadcast(body, donor)
    if give is None:
        structure = json.loads(bytes(body.numpy()))
        # From the structure, with its own limit: sizes that another process names are not trusted.
        tensors = _allocate(structure, limit)
        value = _value(structure, tensors)
    for together in _portions(tensors):
        _send(group, donor, together, sends=give is not None)
    return value, tensors


def _plain(value: Any, tensors: list[torch.Tensor]) -> Any:
    """A value as JSON; its tensors are appended to a list, and stand there as their number."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, torch.Tensor):
        tensors.append(value.detach())
        dtype = str(value.dtype).removeprefix("torch.")
        return {"tensor": [dtype, list(value.shape)]}
    if isinstance(value, dict):
        return {"dict": [[_plain(one, tensors) for one in pair] for pair in value.items()]}
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_plain(one, tensors) for one in value]}
    raise TypeError(
        f"the state of a worker holds a {type(value).__name__}, which is not sent to other "
        "workers: keep numbers, texts, tensors, and lists and dicts of them in it"
    )


def _allocate(structure: Any, limit: int) -> list[torch.Tensor]:
    """Empty tensors for all that a structure names."""
    described = [*_described(structure)]
    total = sum(math.prod(shape) * _DTYPES[dtype].itemsize for dtype, shape in described)
    if total > limit:
        raise ValueError(f"the state of a worker has {total:,} bytes, expected at most {limit:,}")
    return [torch.empty(shape, dtype=_DTYPES[dtype]) for dtype, shape in described]


def _described(structure: Any) -> Iterator[tuple[str, list[int]]]:
    if not isinstance(structure, dict):
        return
    ((kind, content),) = structure.items()
    if kind == "tensor":
        yield content[0], content[1]
    else:
        for one in content:
            for inner in one if kind == "dict" else (one,):
                yield from _described(inner)


def _value(structure: Any, tensors: Sequence[torch.Tensor]) -> Any:
    """The value that a structure describes; tensors are taken in order."""
    remaining = iter(tensors)

    def build(part: Any) -> Any:
        if not isinstance(part, dict):
            return part
        ((kind, content),) = part.items()
        if kind == "tensor":
            return next(remaining)
        if kind == "dict":
            return dict([build(key), build(one)] for key, one in content)
        values = [build(one) for one in content]
        return values if kind == "list" else tuple(values)

    return build(structure)


def _portions(tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Tensors that are sent together: small ones in one message."""
    together: list[torch.Tensor] = []
    size = 0
    for tensor in tensors:
        if together and size + tensor.nbytes > _AT_ONCE:
            yield together
            together, size = [], 0
        if tensor.nbytes:
            together.append(tensor)
            size += tensor.nbytes
    if together:
        yield together


def _send(group: Group, donor: int, tensors: Sequence[torch.Tensor], *, sends: bool) -> None:
    """Send tensors as one sequence of bytes, or receive them into these tensors."""
    sizes = [one.nbytes for one in tensors]
    if sends:
        buffer = torch.cat([one.cpu().contiguous().view(-1).view(torch.uint8) for one in tensors])
    else:
        buffer = torch.empty(sum(sizes), dtype=torch.uint8)
    group.broadcast(buffer, donor)
    if not sends:
        for one, part in zip(tensors, buffer.split_with_sizes(sizes), strict=True):
            one.view(-1).view(torch.uint8).copy_(part)
