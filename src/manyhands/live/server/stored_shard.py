"""A server's part of checkpoints: its shard, its optimizer and the state of its protocol."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from manyhands.files.checkpoints import (
    CHECKPOINTS,
    Checkpoint,
    CheckpointFolder,
    CheckpointPlace,
)
from manyhands.protocols.parts.recovery.stored_state import continue_server, server_part

if TYPE_CHECKING:
    from manyhands.job import Job
    from manyhands.live.assignment import Assignment
    from manyhands.parameters import Holder
    from manyhands.protocols import ServerState
    from manyhands.wire.protocol_messages import StoreShard


class StoredShard:
    """Stores a server's part of a checkpoint, and continues from it.

    A checkpoint is a cut between rounds: no update is under way, and no call is open.

    Args:
        assignment: the assignment of the run.
        number: the number of the server.
        job: the job.
        holder: its shard.

    Raises:
        ValueError: the server is on a host that does not see where checkpoints are stored.
    """

    def __init__(self, assignment: Assignment, number: int, job: Job, holder: Holder) -> None:
        self._name = f"server-{number}"
        self._strategy, self._workers = assignment.strategy, assignment.workers
        self._holder = holder
        self._resume = None if assignment.resume is None else Path(assignment.resume)
        if self._resume is not None and not self._resume.is_dir():
            raise ValueError(
                f"{self._name} on {assignment.host} does not see the checkpoint {self._resume}: "
                "let it be in a folder that all hosts with servers share"
            )
        folder = Path(assignment.storage or assignment.folder)
        if job.checkpoint_on_disk is not None and not assignment.shares_folder:
            first = assignment.hosts[0][0]
            raise ValueError(
                f"{self._name} on {assignment.host} does not see {folder}, where checkpoints are "
                "stored: let --output be a folder that all hosts with servers share, leave out the "
                f"checkpoints, or have the servers on the first host: --servers-on {first}"
            )
        attempt = assignment.attempt or str(assignment.agent)
        about = (folder / CHECKPOINTS, self._name, ("",), job.keep, attempt)
        self._writer = CheckpointFolder(*about)

    def resume(self, first: ServerState) -> ServerState:
        """Continue from the run's checkpoint, if there is one; the state of the protocol.

        The parameters are there already: they are the initial ones of the run.
        """
        if self._resume is None:
            return first
        stored = Checkpoint(self._resume)
        same = stored.manifest.is_of(self._strategy, self._workers)
        return continue_server(stored, self._name, self._holder, first, same=same)

    def store(self, asked: StoreShard, state: ServerState) -> None:
        """Copy the shard to memory; a thread writes it."""
        place = CheckpointPlace(asked.samples, 0, self._strategy, self._workers, 0.0, {}, {})
        mine = server_part(self._holder, state)
        self._writer.store(place, mine, attempt=asked.attempt)

    def close(self) -> None:
        """Wait until the last checkpoint is written."""
        self._writer.wait()
