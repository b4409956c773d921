"""Peer server: a server thread in a worker's process, for strategies without separate servers."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from manyhands.live.member.heartbeat import VitalThread
from manyhands.live.member.progress import Progress
from manyhands.live.server.shard_server import ShardServer

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable

    from manyhands.job import Job
    from manyhands.live.assignment import Assignment
    from manyhands.live.member.heartbeat import LinkHeartbeat
    from manyhands.trace import Recorder
    from manyhands.wire.leasing import Fence, Rejoined


class PeerServer(VitalThread):
    """Serves this worker's replica to other workers while the worker computes.

    Args:
        assignment: the assignment of this host.
        rank: the worker's rank.
        job: the job.
        heartbeat: the worker's heartbeat thread, which receives fences of lost workers.
        recorder: the worker's trace; staleness and bytes are recorded there.
        outside: the listening socket for other hosts.
        least: calls from before this epoch of the membership are meant for a predecessor.
    """

    def __init__(
        self,
        assignment: Assignment,
        rank: int,
        job: Job,
        heartbeat: LinkHeartbeat,
        recorder: Recorder,
        outside: socket.socket | None,
        least: int = 0,
    ) -> None:
        super().__init__(name="peer server", daemon=True)
        self.notices: deque[Fence | Rejoined] = deque()
        """Losses and returns of other workers, for the worker's own thread."""
        self._worker = f"worker-{rank}"
        self.dismissed = False
        self._heartbeat = heartbeat
        quiet: Any = _StalenessAndTraffic(recorder)
        about = (assignment, rank, quiet, Progress(), job, outside)
        self._server = ShardServer(*about, least=least)

    def run(self) -> None:
        """Serve calls until `stop` is called."""
        self._server.until_dismissed(self)

    def take_fenced(self) -> list[Fence | Rejoined]:
        """Losses and returns of other workers since the last call.

        The server takes note of them before it handles another call of its own worker.
        """
        # Taken by this thread and handed on: the worker's thread must not learn of a loss or a
        # return before this server, or of two neighbours one would average and the other not.
        heard = self.about_others(self._heartbeat.take_fenced())
        self.notices.extend(heard)
        return heard

    def about_others(self, notices: Iterable[Fence | Rejoined]) -> list[Fence | Rejoined]:
        """The notices that are not about this worker or its predecessors."""
        return [notice for notice in notices if notice.name != self._worker]

    def stop(self) -> None:
        """Stop serving, and wait for the thread to end."""
        self.dismissed = True
        self.join()


class _StalenessAndTraffic:
    """A recorder that keeps only the staleness of updates and bytes: the spans are the worker's."""

    def __init__(self, recorder: Recorder) -> None:
        self.staleness = recorder.staleness
        self.count = recorder.count

    def span(self, *_: object) -> None:
        """Nothing."""

    def event(self, *_: object) -> None:
        """Nothing."""
