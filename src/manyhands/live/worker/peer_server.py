"""A server that lives in a worker's process, for strategies without servers of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from manyhands.live.member.heartbeat import VitalThread
from manyhands.live.member.progress import Progress
from manyhands.live.server.shard_server import ShardServer

if TYPE_CHECKING:
    import socket

    from manyhands.job import Job
    from manyhands.live.assignment import Assignment
    from manyhands.live.member.heartbeat import LinkHeartbeat
    from manyhands.trace import Recorder
    from manyhands.wire.leasing import Fence


class PeerServer(VitalThread):
    """Answers the others with this worker's replica while the worker computes.

    Args:
        assignment: the run's.
        rank: whose.
        job: what is trained.
        heartbeat: where the worker hears who is gone.
        recorder: the worker's trace; staleness is noted there.
        outside: where other hosts call.
    """

    def __init__(
        self,
        assignment: Assignment,
        rank: int,
        job: Job,
        heartbeat: LinkHeartbeat,
        recorder: Recorder,
        outside: socket.socket | None,
    ) -> None:
        super().__init__(name="peer server", daemon=True)
        self.gone: set[str] = set()
        """The servers of workers that are gone."""
        self.dismissed = False
        self._heartbeat = heartbeat
        quiet: Any = _Staleness(recorder)
        self._serving = ShardServer(assignment, rank, quiet, Progress(), job, outside)

    def run(self) -> None:
        """Answer until the worker has no more to do."""
        self._serving.until_dismissed(self)

    def take_fenced(self) -> list[Fence]:
        """Who is gone since the last call."""
        fenced = self._heartbeat.take_fenced()
        self.gone |= {fence.name.replace("worker", "server") for fence in fenced}
        return fenced

    def stop(self) -> None:
        """Answer no more."""
        self.dismissed = True
        self.join()


class _Staleness:
    """Of what a server notes, the staleness of updates; its time is the worker's own."""

    def __init__(self, recorder: Recorder) -> None:
        self.staleness = recorder.staleness

    def span(self, *_: object) -> None:
        """Nothing."""

    def event(self, *_: object) -> None:
        """Nothing."""
