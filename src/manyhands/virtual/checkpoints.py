"""Checkpoints of virtual runs: stored and continued in the format of live runs.

All processes of a virtual run are in one, so it stores the parts of all of them, at the same kind
of moment as live: all samples leased so far are committed, and all workers have read the shared
state.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import torch

from manyhands.files.checkpoints import CHECKPOINTS, CheckpointFolder, CheckpointPlace, MemberState
from manyhands.files.checkpoints.model import model_parts
from manyhands.protocols.parts.recovery.stored_state import (
    continue_server,
    continue_worker,
    own_state,
    server_part,
    worker_tensors,
)
from manyhands.sampling.batches import steps_before
from manyhands.stopping import ImprovementState

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from manyhands.files.checkpoints import Checkpoint
    from manyhands.job import Job
    from manyhands.protocols import StrategyProtocol
    from manyhands.virtual.log import Logs
    from manyhands.virtual.simulator.kernel import Kernel
    from manyhands.virtual.worker.record import WorkerRecord
    from manyhands.virtual.worker.shared_model import Replication
    from manyhands.virtual.world import World

_ATTEMPT: Final = "virtual"
_OWN: Final = "virtual"
"""The name of what only virtual workers store."""


class VirtualCheckpoints:
    """Stores the checkpoints of a virtual run with numbers, and continues it from one.

    Args:
        world: the processes of the run, which have not begun.
        job: the job; its initial parameters are those of the checkpoint.
        protocol: the strategy.
        kernel: the clock.
        logs: the traces.
        folder: the folder of the run.
        stored: the checkpoint that the run continues from, if it does.
    """

    def __init__(
        self,
        world: World,
        job: Job,
        protocol: StrategyProtocol,
        kernel: Kernel,
        logs: Logs,
        folder: Path,
        stored: Checkpoint | None,
    ) -> None:
        self._servers, self._workers, self._model = world.parts
        self._world, self._job, self._kernel, self._logs = world, job, kernel, logs
        self._strategy = str(protocol)
        self._needs = protocol.needs(len(self._workers))
        self._folder = folder / CHECKPOINTS
        self._writers: dict[str, CheckpointFolder] = {}
        self._stored = stored
        self._spent = 0.0
        """Seconds of training before the run was continued."""
        self._same = False
        """Whether the checkpoint has the same strategy and number of workers."""
        world.coordinator.store = self._store
        if stored is not None:
            self._continue_from(stored)

    def _continue_from(self, stored: Checkpoint) -> None:
        """Continue the servers, the leases and what depends on evaluations."""
        manifest, read = stored.manifest, msgspec.json.decode
        self._spent = manifest.seconds
        self._same = manifest.is_of(self._strategy, len(self._workers))
        noted = manifest.values.get("run/stopping")
        rule = None if noted is None else read(noted, type=ImprovementState)
        about = (manifest.samples, manifest.step, manifest.seconds, rule)
        self._world.coordinator.continue_from(*about)
        if "run/plateau" in manifest.values:
            self._model.plateau = read(manifest.values["run/plateau"])
        for name, server in self._servers.items():
            about_server = (stored, name, server.holder, server.state)
            server.continue_with(continue_server(*about_server, same=self._same))
        detail = {"samples": str(manifest.samples), "words": ""}
        self._logs.coordinator.event("resumed", detail)

    def begin(self) -> None:
        """Have every worker continue when it has the shared parameters; called when all began."""
        if self._stored is None:
            return
        for rank, worker in enumerate(self._workers):
            if worker.replication is not None:
                own = worker.replication
                own.begin = partial(self._restore, self._stored, rank, worker, own)

    def _restore(
        self, stored: Checkpoint, rank: int, worker: WorkerRecord, own: Replication
    ) -> None:
        """Continue as a worker was, if the strategy and the number of workers are the same."""
        optimizer = own.optimizer
        if optimizer is not None and (rank == 0 or not self._needs.one_replica):
            optimizer.load_named(stored)
        own.touched = True
        objectives = len(self._job.one_by_one)
        own.computed = stored.manifest.step * objectives
        tensors, values = own_state(stored, worker.member.name, same=self._same)
        if values and not self._needs.collectives:
            parameters = own.parameters if self._needs.own_parameters else []
            continue_worker(tensors, parameters, optimizer, worker.coded)
        if (noted := values.get(_OWN)) is not None:
            own.computed = noted["computed"]
            for name, generator in _generators(worker).items():
                words = tensors[f"{_OWN}/{name}"].tolist()
                generator.setstate((noted["version"], tuple(words), noted[name]))

    def _store(self, samples: int) -> None:
        """Store a checkpoint after so many samples."""
        pieces, aliases = model_parts(self._world.shared())
        living = [one for one in self._workers if one.member.alive and one.replication is not None]
        if not self._needs.ensemble:
            kept = [one.replication for one in living if one.replication is not None]
            self._model.adopt_shared_buffers(kept)
        values: dict[str, Any] = {}
        improvement = self._world.coordinator.improvement
        values["run/stopping"] = msgspec.json.encode(improvement.state()).decode()
        optimizer = living[0].replication.optimizer if living[0].replication is not None else None
        if optimizer is not None:
            parts, numbers = optimizer.named_state()
            pieces += parts
            values |= numbers
            if optimizer.plateau is not None:
                values["run/plateau"] = msgspec.json.encode(optimizer.plateau.state()).decode()
        states = {one.member.name: self._worker_part(one) for one in living}
        first = living[0].member.name
        states[first] = MemberState(pieces, values, states[first].own, states[first].own_values)
        for name, server in self._servers.items():
            if not self._needs.peer_servers or name.replace("server", "worker") in states:
                states[name] = server_part(server.holder, server.state)
        step = steps_before(self._job.epoch_samples, self._job.batch_sizes, samples)
        about = (samples, step, self._strategy, len(self._workers))
        seconds = self._spent + self._kernel.now
        place = CheckpointPlace(*about, seconds, self._job.settings, aliases)
        self._write(place, states)
        self._logs.coordinator.event("checkpoint", {"samples": str(samples), "seconds": "0.0000"})

    def _worker_part(self, worker: WorkerRecord) -> MemberState:
        """What only one worker has."""
        own = worker.replication
        if own is None:
            return MemberState()
        tensors: dict[str, torch.Tensor] = {}
        if not self._needs.collectives:
            parameters = own.parameters if self._needs.own_parameters else []
            tensors = worker_tensors(parameters, own.optimizer, worker.coded)
        noted: dict[str, Any] = {"computed": own.computed}
        for name, generator in _generators(worker).items():
            noted["version"], words, noted[name] = generator.getstate()
            tensors[f"{_OWN}/{name}"] = torch.tensor(words, dtype=torch.int64)
        return MemberState(own=tensors, own_values={_OWN: noted})

    def _write(self, place: CheckpointPlace, states: dict[str, MemberState]) -> None:
        """Write the parts of all processes; the first one's completes the checkpoint."""
        members = tuple(states)
        url = self._job.checkpoint.to if self._job.checkpoint is not None else ""
        for name in reversed(members):
            if name not in self._writers:
                about = (self._folder, name, members, self._job.keep, _ATTEMPT, url)
                self._writers[name] = CheckpointFolder(*about)
            self._writers[name].store(place, states[name], members)
            if name != members[0]:
                self._writers[name].wait()

    def close(self) -> None:
        """Wait until the last checkpoint is written."""
        for writer in self._writers.values():
            writer.wait()


def _generators(worker: WorkerRecord) -> dict[str, random.Random]:
    """The random generators of a worker: of its compute times, and of its protocol."""
    found = {"times": worker.times}
    return found if worker.endpoint is None else found | {"protocol": worker.endpoint.rng}
