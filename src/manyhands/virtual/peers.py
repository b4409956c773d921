"""Peers of a virtual run: which of the servers in workers' processes the other workers call."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from manyhands.virtual.server import Server
    from manyhands.virtual.worker.endpoint import VirtualEndpoint
    from manyhands.virtual.worker.record import WorkerRecord


class Peers:
    """The servers that workers hold, and who calls them.

    A worker that is lost is not called from then on. Its successor is called when it has got
    a replica, which is when it asks for its first samples, as live.

    Args:
        servers: the servers, by name; empty if they are not in workers' processes.
        workers: the workers, by rank.
    """

    def __init__(self, servers: Mapping[str, Server], workers: Sequence[WorkerRecord]) -> None:
        self._servers = servers
        self._workers = workers
        self.present = set(servers)
        """The servers that are called."""

    def lose(self, worker: str) -> None:
        """Have all living workers note the loss of a worker."""
        name = server_of(worker)
        if name not in self._servers:
            return
        self.present.discard(name)
        for endpoint in self._endpoints():
            endpoint.lose(name)

    def join(self, worker: str) -> None:
        """Have all living workers call a worker that has returned; nothing if it was there."""
        name = server_of(worker)
        if name not in self._servers or name in self.present:
            return
        self.present.add(name)
        for endpoint in self._endpoints():
            if endpoint.name != worker:
                endpoint.reconnect(name)
        for server in self._servers.values():
            if server.member.alive and server.name != name:
                server.admit(worker)

    def acquaint(self, endpoint: VirtualEndpoint) -> None:
        """Tell a worker that starts whom it cannot call."""
        for name in sorted(self._servers.keys() - self.present - {endpoint.own}):
            endpoint.lose(name)

    def _endpoints(self) -> list[VirtualEndpoint]:
        kept = (worker.endpoint for worker in self._workers)
        return [one for one in kept if one is not None and not one.is_dead]


def server_of(worker: str) -> str:
    """The server that a worker holds, in protocols with peer servers."""
    return worker.replace("worker", "server")
