"""Payload of a step: the bytes that a protocol's worker exchanges, by formula."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StepPayload:
    """Payload bytes of one step of one worker, on average over workers and steps.

    They are the bytes of the worker's process, including a peer server in it. Traffic at the start,
    in evaluations and while a worker has no samples is not part of a step.

    >>> pushed = StepPayload(sent=400.0, received=400.0)
    >>> pushed.carried
    800.0
    """

    sent: float = 0.0
    received: float = 0.0
    outer_sent: float = 0.0
    """Of `sent`, the bytes to the outer server, between islands."""
    outer_received: float = 0.0
    """Of `received`, the bytes from the outer server."""
    between_workers: bool = False
    """Whether workers exchange with each other; otherwise with servers."""

    @property
    def carried(self) -> float:
        """Bytes that all processes send per step of one worker, each byte counted once."""
        return self.sent if self.between_workers else self.sent + self.received
