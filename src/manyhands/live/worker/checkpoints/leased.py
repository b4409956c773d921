"""Checkpoints under a protocol: taken at a cut, where all samples leased so far are committed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from manyhands.endpoint import StoreShard
from manyhands.files.checkpoints import (
    CHECKPOINTS,
    Checkpoint,
    CheckpointFolder,
    CheckpointPlace,
    MemberState,
)
from manyhands.files.checkpoints.model import model_parts
from manyhands.live.worker.checkpoints import random_sources
from manyhands.protocols.parts.recovery.stored_state import (
    continue_worker,
    own_state,
    worker_tensors,
)
from manyhands.sampling.batches import steps_before
from manyhands.sampling.permutation import mix
from manyhands.seeding import seed_all
from manyhands.stopping import ImprovementState

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from manyhands.endpoint import Said
    from manyhands.files.checkpoints import TensorPart
    from manyhands.job import Job
    from manyhands.live.worker.checkpoints.storing_plan import StoringPlan
    from manyhands.live.worker.stream_position import StreamPosition
    from manyhands.parameters import Copy, LocalOptimizer
    from manyhands.protocols.compression.worker import CodedEndpoint
    from manyhands.runtime_needs import RuntimeNeeds
    from manyhands.stopping import Improvement
    from manyhands.wire.leasing import Evaluate


class LeasedCheckpoints:
    """The checkpoints of one worker under a protocol.

    The worker of lowest rank stores the model, asks the servers to store, and completes the
    checkpoint. Every worker stores what only it has.

    Args:
        plan: where checkpoints are stored, and from which one the run continues.
        job: the job.
        needs: what the protocol needs of its runtime.
        rank: this worker's rank.
        workers: the number of workers.
        copy: its copy of the model.
        parts: its own optimizer, None if servers step; what follows the metric of early stopping;
            the place in the job's stream.
        coded: what it sends under codecs; None without any.
        device: the device of the model.
        call: sends a message to a server and waits for the answer.
        spent: seconds of training so far.
    """

    def __init__(
        self,
        plan: StoringPlan,
        job: Job,
        needs: RuntimeNeeds,
        rank: int,
        workers: int,
        copy: Copy,
        parts: tuple[LocalOptimizer | None, Improvement, StreamPosition],
        coded: CodedEndpoint | None,
        device: torch.device,
        call: Callable[[str, Said], None],
        spent: Callable[[], float],
    ) -> None:
        self._plan, self._job, self._needs = plan, job, needs
        self._rank, self._workers = rank, workers
        self._local, self._improvement, self._position = parts
        self._copy, self._coded, self._device = copy, coded, device
        self._call, self._spent = call, spent
        self._name = f"worker-{rank}"
        folder = plan.folder / CHECKPOINTS
        url = job.checkpoint.to if job.checkpoint is not None else ""
        about = (folder, self._name, (self._name,), job.keep, plan.attempt)
        self._writer = CheckpointFolder(*about, url, plan.note)

    def store(self, cut: Evaluate, bring: Callable[[], None]) -> float:
        """Store this worker's part; the first worker's part has the model.

        Args:
            cut: where in the run it is, and which workers store.
            bring: brings the copy to the shared state.

        Returns:
            Seconds for which the copy to memory took.
        """
        attempt = f"{self._plan.attempt}-{cut.round}"
        first = cut.index == 0
        # A copy: the shared state is read into the same memory, and the worker goes on with its
        # own.
        kept = [one.clone() for one in self._copy.parameters] if self._needs.own_parameters else []
        own = self._own(kept)
        # All workers read the shared state, as at an evaluation: who rested is present again.
        bring()
        pieces: list[TensorPart] = []
        values: dict[str, Any] = {}
        aliases: dict[str, str] = {}
        if first:
            pieces, aliases = model_parts(self._copy.model)
            if self._local is not None:
                parts, numbers = self._local.named_state()
                pieces += parts
                values |= numbers
            text = msgspec.json.encode(self._improvement.state()).decode()
            values["run/stopping"] = text
            position = self._position.state()
            if position.get("position", 0) <= cut.samples:
                values["run/stream"] = msgspec.json.encode(position).decode()
        for name in self._asked(first=first):
            self._call(name, StoreShard(cut.samples, attempt))
        step = steps_before(self._job.epoch_samples, self._job.batch_sizes, cut.samples)
        about = (cut.samples, step, self._plan.strategy, self._workers, self._spent())
        place = CheckpointPlace(*about, self._job.settings, aliases)
        if self._sees(self._name):
            mine = MemberState(pieces, values, *own)
            self._writer.store(place, mine, self._members(cut.ranks), attempt)
        for shard, before in zip(self._copy.parameters, kept, strict=False):
            shard.copy_(before)
        return self._writer.stalled

    def _sees(self, name: str) -> bool:
        return not self._plan.storing or name in self._plan.storing

    def _asked(self, *, first: bool) -> list[str]:
        """The servers that this worker asks to store."""
        if self._needs.peer_servers:
            return [f"server-{self._rank}"] if self._sees(self._name) else []
        return [f"server-{number}" for number in range(self._needs.servers)] if first else []

    def _members(self, ranks: tuple[int, ...]) -> tuple[str, ...]:
        """All processes that store, the first worker first."""
        workers = [f"worker-{rank}" for rank in ranks if self._sees(f"worker-{rank}")]
        numbers = ranks if self._needs.peer_servers else range(self._needs.servers)
        peers = self._needs.peer_servers
        servers = [
            f"server-{number}" for number in numbers if not peers or self._sees(f"worker-{number}")
        ]
        return (*workers, *servers)

    def _own(
        self, parameters: list[torch.Tensor]
    ) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        tensors, drawn = random_sources.capture(self._device)
        tensors |= worker_tensors(parameters, self._local, self._coded)
        return tensors, {"random": drawn}

    def restore(self, *, returns: bool = False) -> None:
        """Continue as this worker was, if the run has the same strategy and workers.

        Called after the first exchange with servers, before the first batch. With another strategy
        the worker has what servers, or the weights of the checkpoint, gave it.

        Args:
            returns: whether the run has gone on since the checkpoint, and the worker was restarted:
                it keeps the parameters that it has got from servers or other workers.
        """
        if self._plan.resume is None or not self._plan.resume.is_dir():
            return
        stored = Checkpoint(self._plan.resume)
        manifest = stored.manifest
        rule = manifest.values.get("run/stopping")
        if rule is not None:
            self._improvement.restore(msgspec.json.decode(rule, type=ImprovementState))
        if "run/stream" in manifest.values:
            self._position.restore(msgspec.json.decode(manifest.values["run/stream"]))
        if returns:
            return
        if self._local is not None:
            self._local.load_named(stored)
        same = manifest.is_of(self._plan.strategy, self._workers)
        tensors, values = own_state(stored, self._name, same=same)
        if values:
            parameters = self._copy.parameters if self._needs.own_parameters else []
            continue_worker(tensors, parameters, self._local, self._coded)
        if "random" in values:
            random_sources.restore(tensors, values["random"], self._device)
        else:
            seed_all(mix(self._job.seed, 1, self._rank, manifest.step))

    def close(self) -> None:
        """Wait until the last checkpoint is written."""
        self._writer.wait()
