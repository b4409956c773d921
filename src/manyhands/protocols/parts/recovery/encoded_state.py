"""Encoding of a server's state in journals and checkpoints, live and virtual.

It is stored as JSON, which has no other keys than strings and no tuples. `read_state` makes the
types of the state of it again, so that `read_state` of what `plain_state` returned is equal to the
state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

if TYPE_CHECKING:
    from manyhands.protocols.protocol import ServerState

    S = TypeVar("S", bound=ServerState)


def plain_state(state: ServerState) -> dict[str, Any]:
    """The state in the types of JSON."""
    plain: dict[str, Any] = msgspec.to_builtins(state, str_keys=True)
    return plain


def read_state(values: object, kind: type[S]) -> S:
    """The state of this type that `plain_state` returned the values of."""
    return convert(values, kind, str_keys=True)


convert = msgspec.convert
