"""Traffic of a worker under a placement: the bytes of its collectives, by phase and scope.

Wire bytes are measured: the kernel counts them for each connection of the worker's process group,
including what Gloo adds and what was sent again. Payload bytes are computed: for each collective
that was started, the bytes that its algorithm sends (`manyhands.costs`). On several hosts the
payload is divided between and within hosts in the proportion of the wire bytes. Workers receive as
much payload as they send, on average over them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.trace import SCOPES, Flow, flow_key

if TYPE_CHECKING:
    from manyhands.trace import Phase, Recorder, Scope
    from manyhands.transport.collectives import Group
    from manyhands.transport.waits import Waits


class CollectiveTraffic:
    """Assigns a worker's bytes to phases.

    Args:
        group: the process group of all workers.
        waits: counts the payload of collectives.
    """

    def __init__(self, group: Group, waits: Waits) -> None:
        self._group = group
        self._waits = waits
        self._flows: dict[str, Flow] = {}
        self._payload = 0.0
        self._wire: dict[Scope, tuple[int, int]] = {}
        """Bytes sent and received when they were last assigned to a phase."""
        self._earlier: tuple[dict[str, int], dict[str, int]] = ({}, {})
        """Bytes sent and received by peer in former groups."""
        self.phase: Phase = "start"

    def regroup(self, group: Group) -> None:
        """Count the bytes of another group from now on; the former one must still be open."""
        self._settle()
        for total, own in zip(self._earlier, self._group.traffic(), strict=True):
            _add(total, own)
        self._group, self._wire = group, {}

    def enter(self, phase: Phase) -> None:
        """Begin a phase."""
        if phase != self.phase:
            self._settle()
            self.phase = phase

    def record(self, recorder: Recorder) -> None:
        """Write the bytes so far to the trace."""
        self._settle()
        sent, received = self._group.traffic()
        for total, own in zip((sent, received), self._earlier, strict=True):
            _add(total, own)
        recorder.traffic(sent=sent, received=received, traffic=self._flows)

    def _settle(self) -> None:
        """Assign the bytes since the last call to the current phase."""
        wire, before = self._by_scope(), self._wire
        payload = self._waits.payload - self._payload
        self._wire, self._payload = wire, self._waits.payload
        gone = {scope: wire[scope][0] - before.get(scope, (0, 0))[0] for scope in wire}
        total = sum(gone.values())
        for scope, (sent, received) in wire.items():
            share = round(payload * gone[scope] / total) if total else 0
            key = flow_key(self.phase, scope)
            if sent or received:
                back = received - before.get(scope, (0, 0))[1]
                flow = Flow(share, gone[scope], share, back)
                self._flows[key] = self._flows.get(key, Flow()) + flow

    def _by_scope(self) -> dict[Scope, tuple[int, int]]:
        """Wire bytes sent and received so far, between hosts and within this one."""
        sent, received = self._group.traffic()
        here = self._group.peers_here()
        sums: dict[Scope, tuple[int, int]] = {}
        for scope in SCOPES:
            peers = [peer for peer in sent if (peer in here) == (scope == "within")]
            sums[scope] = (
                sum(sent[peer] for peer in peers),
                sum(received[peer] for peer in peers),
            )
        return sums


def _add(total: dict[str, int], own: dict[str, int]) -> None:
    """Add bytes by peer to a total."""
    for peer, count in own.items():
        total[peer] = total.get(peer, 0) + count
