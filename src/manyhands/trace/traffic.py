"""Traffic: the bytes that a process exchanges with others, by phase, scope and direction.

*Payload* bytes are the tensors of a message: parameters, gradients, statistics. *Wire* bytes are
the payload and the envelopes around it, as they are given to a socket: without encryption, and
without the headers of ZeroMQ and TCP. Each message is counted once by its sender, as sent, and once
by its receiver, as received. Processes of one host hand payloads over in shared memory, where
they can; that counts the same, as traffic within the host. What a worker exchanges with the peer
server in its own process is not counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, Protocol, get_args

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

Phase = Literal["start", "training", "evaluation", "idle"]
"""When a worker made the call that a message belongs to: before its first batch; in training; for
an evaluation; or while it has no samples, at the end of an epoch or of the run."""
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)

Scope = Literal["between", "within"]
"""Whether a message went between two hosts, or between two processes of one host."""
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)


class Flow(msgspec.Struct, frozen=True, array_like=True):
    """Bytes in both directions, as one process or several have counted them.

    >>> Flow(payload_sent=8, wire_sent=10) + Flow(payload_sent=2, wire_sent=3)
    Flow(payload_sent=10, wire_sent=13, payload_received=0, wire_received=0)
    """

    payload_sent: int = 0
    wire_sent: int = 0
    payload_received: int = 0
    wire_received: int = 0

    def __add__(self, other: Flow) -> Flow:
        return Flow(
            self.payload_sent + other.payload_sent,
            self.wire_sent + other.wire_sent,
            self.payload_received + other.payload_received,
            self.wire_received + other.wire_received,
        )


def flow_key(phase: Phase, scope: Scope) -> str:
    """The name of a flow in a trace.

    >>> flow_key("training", "between")
    'training/between'
    """
    return f"{phase}/{scope}"


class CountsBytes(Protocol):
    """The part of a recorder to which bytes are handed."""

    def count(
        self,
        *,
        sent: Mapping[str, int],
        received: Mapping[str, int],
        traffic: Mapping[str, Flow],
    ) -> None:
        """Add to the sums: by peer, and by phase and scope."""


class TrafficCount:
    """Counts the messages of one thread; `hand_to` passes the sums to a recorder.

    >>> count = TrafficCount()
    >>> count.sent("server-0", "training", "within", payload=400, envelope=100)
    >>> count.by_peer()["server-0"].wire_sent
    500
    """

    def __init__(self) -> None:
        self._counted: dict[tuple[str, Phase, Scope], list[int]] = {}
        """Since the last `hand_to`: payload and wire bytes sent, then received."""

    def sent(
        self, peer: str, phase: Phase, scope: Scope, *, payload: int = 0, envelope: int = 0
    ) -> None:
        """Count what was sent to a peer."""
        counted = self._counted.get((peer, phase, scope)) or self._new(peer, phase, scope)
        counted[0] += payload
        counted[1] += payload + envelope

    def received(
        self, peer: str, phase: Phase, scope: Scope, *, payload: int = 0, envelope: int = 0
    ) -> None:
        """Count what was received from a peer."""
        counted = self._counted.get((peer, phase, scope)) or self._new(peer, phase, scope)
        counted[2] += payload
        counted[3] += payload + envelope

    def _new(self, peer: str, phase: Phase, scope: Scope) -> list[int]:
        counted = self._counted[peer, phase, scope] = [0, 0, 0, 0]
        return counted

    def by_peer(self) -> dict[str, Flow]:
        """The bytes since the last `hand_to`, by peer."""
        flows: dict[str, Flow] = {}
        for (peer, _, _), counted in self._counted.items():
            flows[peer] = flows.get(peer, Flow()) + Flow(*counted)
        return flows

    def by_kind(self) -> dict[str, Flow]:
        """The bytes since the last `hand_to`, by phase and scope (`flow_key`)."""
        flows: dict[str, Flow] = {}
        for (_, phase, scope), counted in self._counted.items():
            key = flow_key(phase, scope)
            flows[key] = flows.get(key, Flow()) + Flow(*counted)
        return flows

    def hand_to(self, recorder: CountsBytes) -> None:
        """Add the sums to a trace, and begin again at 0."""
        if not self._counted:
            return
        peers = self.by_peer()
        recorder.count(
            sent={name: flow.wire_sent for name, flow in peers.items() if flow.wire_sent},
            received={
                name: flow.wire_received for name, flow in peers.items() if flow.wire_received
            },
            traffic=self.by_kind(),
        )
        self._counted = {}
