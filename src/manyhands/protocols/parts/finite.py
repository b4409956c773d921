"""Refusal of pushes with NaN or infinity, by every server, before anything is changed.

A protocol decides about a call without its payload. So the runtime looks at the payload first, and
a push that is not finite is given to the protocol as one without samples, marked as refused: a
round counts it as an empty contribution and does not wait for its sender. No action applies its
payload (`manyhands.protocols.execution`), and its answer says that it was not applied. So no
protocol has to check for it itself (`docs/decisions/0068-values-that-lie.md`).

What a worker sends to the server in its own process is not looked at: that server holds the
worker's own replica.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from manyhands.endpoint import Push

if TYPE_CHECKING:
    import torch

    from manyhands.endpoint import Said
    from manyhands.parameters import Holder
    from manyhands.protocols.actions import Call
    from manyhands.protocols.compression.shard import CodedShard


class FiniteCheck:
    """Looks at the payloads of a server's calls.

    Args:
        holder: the shard; it remembers the refused calls, also for a restarted server.
        own: the worker in the server's own process; "" for none.
    """

    def __init__(self, holder: Holder, own: str = "") -> None:
        self._holder = holder
        self._own = own

    def examine(self, call: Call, payload: torch.Tensor | None, coded: CodedShard | None) -> Call:
        """The call as its protocol is to see it: marked, and without samples, if it is refused.

        Args:
            call: a call that was not handled before.
            payload: its payload, decoded.
            coded: what decoded it, if there are codecs.
        """
        message = call.message
        if not isinstance(message, Push) or call.sender.partition(".")[0] == self._own:
            return call
        found = coded.not_finite if coded is not None else ""
        if not found and payload is not None:
            found = self._holder.not_finite(payload)
        if not found:
            return call
        self._holder.refused[call.sender] = call.number
        empty = msgspec.structs.replace(message, samples=0, mass=0.0)
        return replace(call, message=empty, refused=found)

    def again(self, call: Call) -> Call:
        """A call that was handled before: a refusal stands."""
        if self._holder.refused.get(call.sender) != call.number:
            return call
        return replace(call, refused="NaN")


def about_push(message: Said) -> tuple[int, dict[str, object]]:
    """The samples of a push, and where they are, as far as a server is told."""
    if not isinstance(message, Push):
        return 0, {}
    return message.samples, {"sample": message.dealt}


def own_worker(number: int, *, peer_servers: bool) -> str:
    """The worker in whose process a server is; "" for none."""
    return f"worker-{number}" if peer_servers else ""
