"""Checkpoints under a placement: every worker stores its parts after the same step."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from manyhands.data.taking import preview
from manyhands.engine.tensors import is_divided
from manyhands.files.checkpoints import (
    ASKED,
    CHECKPOINTS,
    Checkpoint,
    CheckpointFolder,
    CheckpointPlace,
    MemberState,
)
from manyhands.live.worker.checkpoints import optimizer_state, random_sources
from manyhands.live.worker.checkpoints.host_ring import HostRing
from manyhands.live.worker.checkpoints.memory_copies import MemoryCopies
from manyhands.live.worker.checkpoints.storing_plan import StoredIn
from manyhands.live.worker.checkpoints.tensor_parts import load_tensors, pieces
from manyhands.live.worker.loading import move
from manyhands.sampling.permutation import mix
from manyhands.seeding import seed_all
from manyhands.stopping import Improvement, ImprovementState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from manyhands.job import Job
    from manyhands.live.member.progress import Progress
    from manyhands.live.worker.checkpoints.agreement import Agreement
    from manyhands.live.worker.checkpoints.storing_plan import StoringPlan
    from manyhands.parameters.optional.weight_average import WeightAverage
    from manyhands.parameters.weights.loss_weight import CountedLoss
    from manyhands.placements.bound import Bound
    from manyhands.trace import Recorder
    from manyhands.transport.collectives import Group


class LockstepCheckpoints:
    """The checkpoints of one worker under a placement.

    Args:
        plan: where they are stored.
        job: the job.
        bound: this worker's part of the model.
        group: all workers.
        average: the moving average of the parameters, if there is one.
        parts: what else the trainer has: objects with `state()` and `restore(state)`, by name.
        losses: count what each objective is a mean over.
        device: the device of this worker.
        agreement: decides by the clock when to store.
        progress: what heartbeats report.
        recorder: this worker's trace.
    """

    def __init__(
        self,
        plan: StoringPlan,
        job: Job,
        bound: Bound,
        group: Group,
        average: WeightAverage | None,
        parts: Mapping[str, Any],
        losses: Sequence[CountedLoss],
        device: torch.device,
        agreement: Agreement,
        progress: Progress,
        recorder: Recorder,
    ) -> None:
        self._plan, self._job, self._bound, self._group = plan, job, bound, group
        self._average, self._losses, self._device = average, losses, device
        self._parts = {name: one for name, one in parts.items() if one is not None}
        self._points = {StoredIn.DISK: job.checkpoint_points}
        self._copies: MemoryCopies | None = None
        self._folder = plan.folder / CHECKPOINTS
        self._alone = False
        """Whether the first worker stores everything: the others do not see the folder."""
        self._agreement, self._progress, self._recorder = agreement, progress, recorder
        self._writer: CheckpointFolder | None = None
        self._joined: Group | None = None
        """The group for which it was decided who stores."""
        agreement.asks(self._asked if job.checkpoint_on_disk is not None else None)
        if plan.memory and job.checkpoint_in_memory is not None:
            self._points[StoredIn.MEMORY] = job.memory_points
            ring = HostRing(plan.hosts) if plan.spans_hosts else None
            self._copies = MemoryCopies(plan.memory, group, plan.generation, recorder, ring)
            agreement.keep(job.checkpoint_in_memory.seconds)

    def regroup(self, group: Group) -> None:
        """Store with the workers of another group from now on."""
        self._group = group
        if self._writer is not None:
            self._writer.abandon()

    def _make_writer(self) -> CheckpointFolder:
        """Every worker stores, if all see the folder of the run; otherwise the first stores all.

        Raises:
            ValueError: they do not, and the first one does not have the whole model.
        """
        if self._group.rank == 0:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / f".{self._plan.attempt}").touch()
        ready = torch.zeros(1, dtype=torch.int64, device=self._group.device)
        self._group.sum(ready)
        seen = torch.full_like(ready, (self._folder / f".{self._plan.attempt}").exists())
        self._group.sum(seen)
        if self._group.rank == 0:
            (self._folder / f".{self._plan.attempt}").unlink(missing_ok=True)
        self._alone = int(seen) < self._group.size
        whole = not any(is_divided(one.tensor) for one in self._bound.held())
        if self._alone and not (whole and self._bound.replicas == self._group.size):
            raise ValueError(
                f"under {self._plan.strategy} every worker stores its part of a checkpoint, and "
                f"{self._group.size - int(seen)} workers do not see {self._folder}: let --output "
                "be a folder that all hosts share, or use allreduce()"
            )
        member = f"worker-{self._group.rank}"
        about = (self._folder, member, (member,), self._job.keep, self._plan.attempt)
        self._joined = self._group
        url = self._job.checkpoint.to if self._job.checkpoint else ""
        return CheckpointFolder(*about, url, self._plan.note)

    @property
    def _as_now(self) -> tuple[str, int]:
        return self._plan.strategy, self._group.size

    def _asked(self) -> bool:
        """Whether the user, or the agent before it leaves, has asked for a checkpoint.

        Only the first worker looks, because it decides: another one would remove the file and the
        request with it.
        """
        asking = self._folder / ASKED
        if self._group.rank != 0 or not asking.exists():
            return False
        asking.unlink(missing_ok=True)
        return True

    def due(self, before: int, after: int, stores: bool, keeps: bool) -> StoredIn:
        """Where one is stored after the batch that brought the samples of the run from `before`.

        Args:
            before: samples of the run before the batch.
            after: samples of the run after it.
            stores: whether one on the disk is due by time, or was asked for.
            keeps: whether one in memory is due by time.
        """
        where = StoredIn.DISK if stores else StoredIn(0)
        where |= StoredIn.MEMORY if keeps else StoredIn(0)
        for place, points in self._points.items():
            due = None if points is None else points.after(before, self._job.epoch_samples)
            if due is not None and after >= due:
                where |= place
        return where

    def store(self, samples: int, step: int, seconds: float, where: StoredIn) -> None:
        """Store a checkpoint after a step; all workers call it."""
        self._bound.settle()
        self._bound.average_buffers()
        place = CheckpointPlace(
            samples=samples,
            step=step,
            strategy=self._plan.strategy,
            workers=self._group.size,
            seconds=seconds,
            settings=self._job.settings,
            aliases=dict(self._bound.state().aliases),
        )
        if StoredIn.MEMORY in where and self._copies is not None:
            self._copies.store(place, self._state())
        if StoredIn.DISK in where:
            self._store_on_disk(place)

    def _store_on_disk(self, place: CheckpointPlace) -> None:
        if self._writer is None or self._joined is not self._group:
            self._writer = self._make_writer()
        state = self._state()
        if self._alone and self._group.rank:
            for _ in state.pieces:
                pass
            return
        members = tuple(f"worker-{rank}" for rank in range(1 if self._alone else self._group.size))
        self._writer.store(place, state, members, f"{self._plan.attempt}-{self._group.epoch}")
        if self._group.rank == 0:
            detail = {"samples": str(place.samples), "seconds": f"{self._writer.stalled:.4f}"}
            self._recorder.event("checkpoint", detail)

    def _state(self) -> MemberState:
        """What this worker stores."""
        stepped = self._bound.stepped()
        numbers = optimizer_state.numbers(self._bound.optimizer, stepped)
        own_tensors, own_values = self._bound.own_state()
        drawn, drawn_values = random_sources.capture(self._device)
        values = {
            f"run/{name}": msgspec.json.encode(one.state()).decode()
            for name, one in self._parts.items()
        }
        return MemberState(
            pieces(self._bound, self._average, self._plan.strategy, everything=self._alone),
            numbers | values,
            {f"bound/{name}": one for name, one in own_tensors.items()} | drawn,
            {"bound": own_values, "random": drawn_values},
        )

    def restore(self) -> tuple[int, int]:
        """Continue from the stored state, if there is one; the samples and steps before it."""
        stored = self._last()
        if stored is None:
            return 0, 0
        if (stored.manifest.strategy, stored.manifest.workers) == self._as_now:
            share = max(2, self._job.batch_sizes.at(stored.samples) // self._bound.replicas)
            batch = preview(self._job.data, self._job.collate_fn, share)
            data = self._job.data
            samples = share if self._job.streams else min(share, len(data))  # type: ignore[arg-type]  # sized
            inputs, targets = self._job.divide(move(batch, self._device))
            self._bound.repeat_first_step(inputs, targets, samples)
            for loss in self._losses:
                loss.take()
        notes = self._load(stored)
        self._agreement.continue_from(stored.manifest.seconds, stored.manifest.step)
        self._progress.step = stored.manifest.step
        if self._group.rank == 0:
            self._progress.samples = stored.samples
            detail = {"samples": str(stored.samples), "words": "; ".join(notes)}
            self._recorder.event("resumed", detail)
        return stored.samples, stored.manifest.step

    def _last(self) -> Checkpoint | None:
        """What the run continues from: the later one of that on the disk and that in memory."""
        disk = None if self._plan.resume is None else Checkpoint(self._plan.resume)
        kept = None if self._copies is None else self._copies.gather()
        if disk is None or (kept is not None and kept.samples > disk.samples):
            return kept
        return disk

    def _load(self, stored: Checkpoint) -> list[str]:
        """Take over a stored state; return what could not be taken over."""
        notes = load_tensors(self._bound, self._average, stored)
        for name, one in self._parts.items():
            if f"run/{name}" in stored.manifest.values:
                state = json.loads(stored.manifest.values[f"run/{name}"])
                is_rule = isinstance(one, Improvement)
                one.restore(msgspec.convert(state, ImprovementState) if is_rule else state)
        alike = (stored.manifest.strategy, stored.manifest.workers) == self._as_now
        tensors, values = stored.own(f"worker-{self._group.rank}") if alike else ({}, {})
        # Copies: what is in memory is overwritten by a later checkpoint.
        tensors = {name.removeprefix("own/"): one.clone() for name, one in tensors.items()}
        mine = {
            name.removeprefix("bound/"): one
            for name, one in tensors.items()
            if name.startswith("bound/")
        }
        self._bound.load_own_state(mine, values.get("bound", {}))
        if "random" in values:
            random_sources.restore(tensors, values["random"], self._device)
        else:
            # Another division of the work has other random numbers, the same in every repetition.
            seed_all(mix(self._job.seed, 1, self._bound.replica, stored.manifest.step))
        return notes

    def close(self) -> None:
        """Wait until the last checkpoint is written."""
        if self._writer is not None:
            self._writer.wait()
        if self._copies is not None:
            self._copies.close()
