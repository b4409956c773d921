"""A server's part of checkpoints: its shard, its optimizer and the state of its protocol."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from manyhands.files.checkpoints import (
    CHECKPOINTS,
    Checkpoint,
    CheckpointFolder,
    CheckpointPlace,
    MemberState,
)

if TYPE_CHECKING:
    from manyhands.job import Job
    from manyhands.live.assignment import Assignment
    from manyhands.parameters import Holder
    from manyhands.protocols import ServerState
    from manyhands.wire.protocol_messages import StoreShard

_OF_CALLERS: Final = ("remembered ", "reference ")
"""What a server keeps for single callers, who are others after a run was continued."""


class StoredShard:
    """Stores a server's part of a checkpoint, and continues from it.

    A checkpoint is a cut between rounds: no update is under way, and no call is open.

    Args:
        assignment: the assignment of the run.
        number: the number of the server.
        job: the job.
        holder: its shard.
    """

    def __init__(self, assignment: Assignment, number: int, job: Job, holder: Holder) -> None:
        self._name = f"server-{number}"
        self._strategy, self._workers = assignment.strategy, assignment.workers
        self._holder = holder
        self._resume = None if assignment.resume is None else Path(assignment.resume)
        folder = Path(assignment.folder) / CHECKPOINTS
        about = (folder, self._name, ("",), job.keep, str(assignment.agent))
        self._writer = CheckpointFolder(*about)

    def resume(self, first: ServerState) -> ServerState:
        """Continue from the run's checkpoint, if there is one; the state of the protocol.

        The parameters are there already: they are the initial ones of the run.
        """
        if self._resume is None:
            return first
        stored = Checkpoint(self._resume)
        self._holder.load_named(stored)
        manifest = stored.manifest
        tensors, values = stored.own(self._name)
        if (manifest.strategy, manifest.workers) != (self._strategy, self._workers) or not values:
            return first
        kept = {
            name.removeprefix("own/"): tensor
            for name, tensor in tensors.items()
            if not name.removeprefix("own/").startswith(_OF_CALLERS)
        }
        numbers = {name: one for name, one in values["optimizer"].items() if name != "references"}
        self._holder.restore(kept, numbers)
        state: ServerState = msgspec.convert(values["state"], type(first))
        present = getattr(first, "present", None)
        # Workers without samples rested at the cut; in a run that begins, all are present.
        return state if present is None else replace(state, present=present)  # type: ignore[call-arg]

    def store(self, asked: StoreShard, state: ServerState) -> None:
        """Copy the shard to memory; a thread writes it."""
        tensors, numbers = self._holder.state()
        parts, named = self._holder.named_state()
        own = {name: tensor for name, tensor in tensors.items() if not name.startswith(_OF_CALLERS)}
        plain = {name: one for name, one in numbers.items() if name != "references"}
        values = {"state": msgspec.to_builtins(state), "optimizer": plain}
        place = CheckpointPlace(asked.samples, 0, self._strategy, self._workers, 0.0, {}, {})
        mine = MemberState(parts, named, own, values)
        self._writer.store(place, mine, attempt=asked.attempt)

    def close(self) -> None:
        """Wait until the last checkpoint is written."""
        self._writer.wait()
