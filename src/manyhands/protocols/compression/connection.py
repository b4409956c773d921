"""What a worker keeps for the servers that it sends to under codecs."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from manyhands.codecs import ErrorFeedback

if TYPE_CHECKING:
    import torch

    from manyhands.parameters import Shard
    from manyhands.protocols.compression.coding import Coding


@dataclass
class Connection:
    """What a worker keeps for one server."""

    shard: Shard
    coding: Coding
    feedback: list[ErrorFeedback]
    """One per dtype, of the updates or replicas that are pushed."""
    reference: int = 0
    """The number of the last answer; 0 for none."""
    answered: torch.Tensor | None = None
    """The parameters of the last answer: the bytes of the shard."""
    sent: torch.Tensor | None = None
    """What the server has received, if states are pushed."""
    pushes: int = 0
    came: torch.Tensor | None = None
    """The tensor that the last answer was decoded into; None if it had no payload."""
    waiting: deque[tuple[torch.Tensor, torch.Tensor] | None] = field(default_factory=deque)
    """By call, the frame's buffer and the tensor that the decoded answer goes to."""
    spare: list[torch.Tensor] = field(default_factory=list)
    """Buffers for frames that are not in use."""


@dataclass
class SharedPushes:
    """What a worker keeps if it sends the same pushes to all servers."""

    feedback: list[ErrorFeedback] = field(default_factory=list)
    """The residuals, one per dtype."""
    last: tuple[int, torch.Tensor] | None = None
    """The number and the frame of the last push."""

    def frame(self, number: int) -> torch.Tensor | None:
        """The frame of a push that was encoded for another server; None if it was not."""
        return self.last[1] if self.last is not None and self.last[0] == number else None


def connect(shard: Shard, coding: Coding, shared: SharedPushes) -> Connection:
    """What a worker keeps for a server, before the first message.

    Args:
        shard: the server's shard.
        coding: its codecs.
        shared: used if all servers receive the same pushes.
    """
    if coding.pushes is None:
        return Connection(shard, coding, [])
    if not coding.shared:
        return Connection(
            shard, coding, [ErrorFeedback(coding.pushes) for _ in shard.flat_by_dtype]
        )
    if not shared.feedback:
        shared.feedback = [ErrorFeedback(coding.pushes) for _ in shard.flat_by_dtype]
    return Connection(shard, coding, shared.feedback)
