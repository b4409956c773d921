"""Trainer of a worker that holds a part of a replica, among replicas that may be lost and replaced.

The workers of a replica are a *row*. If one of them is lost, its row is left out, and the other
rows continue: they form another group, make their parts of the model anew on a mesh with fewer
replicas, and repeat the step with the same global batch. The state goes from the old parts to the
new ones by the names of the tensors, through memory of the host: the workers of one row write what
they hold, and all workers read what they need. So a row that joins later gets its state in the same
way, and no worker ever holds more than its part.

The end of a step is agreed on. When all gradients are summed, the workers exchange one more number,
and then each of them steps by itself. If a worker has completed this exchange, all have begun it,
and have their gradients: whoever was interrupted in it takes the step by itself, too.
"""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from manyhands.failure import PeerLost
from manyhands.files.checkpoint import State
from manyhands.files.checkpoints import CheckpointPlace, DamagedCheckpoint, MemberState
from manyhands.files.checkpoints.memory import HandedOver, MemoryContent, MemoryFile
from manyhands.live.processes.incarnation import incarnation
from manyhands.live.worker.checkpoints import optimizer_state
from manyhands.live.worker.checkpoints.tensor_parts import load_tensors, pieces
from manyhands.live.worker.lockstep.elastic_trainer import FRESH, ElasticTrainer
from manyhands.live.worker.lockstep.handover import hand_over
from manyhands.sampling.permutation import mix
from manyhands.seeding import seed_all
from manyhands.transport.shared.memory import reserve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from manyhands.placements import Placement
    from manyhands.sampling.permutation import Share
    from manyhands.transport.collectives import Group
    from manyhands.wire.regrouping import Regroup

_ATTEMPTS = 20
"""Groups of a worker in a row that may fail to take over the state."""
_POSITION_LIMIT = 1 << 20
"""Bytes of tensors with which a position is accepted; it has none."""


class RowTrainer(ElasticTrainer):
    """The training of one worker of a replica in a group that may change; see `ElasticTrainer`."""

    again = False
    """Whether it is made in place of another one of the same process, whose row was left out."""
    _file: int | None = None
    """The descriptor of memory with this worker's part of the state, while it is handed over."""
    _pending: Share | None = None
    """The share of a step whose gradients are complete, and which is not taken yet."""

    def _bind(self, strategy: Placement, group: Group) -> None:
        if group.epoch:
            super()._bind(strategy.with_replicas(group.size // strategy.row), group)
        # Alone it can hold no part of a replica.

    @property
    def _is_awaited(self) -> bool:
        return incarnation() == 1 and not self.again

    def _account_samples(self, share: Share, loss: torch.Tensor, *, lost: bool) -> None:
        self._refused = lost
        self._accounted = (share, loss, lost)

    def _step(self, share: Share) -> None:
        """Step when it is certain that all workers can."""
        if self.job.clip is not None:
            self._bound.clip(self.job.clip)
        if self._bound.rescales:
            self._set_groups(share)
        # Before the exchange: if it is interrupted, this shows that the gradients are complete and
        # the step may be taken without the others.
        self._pending = share
        self._await_all()
        self._pending = None
        self._bound.step(self._bound.counts)
        accounted, loss, lost = self._accounted
        super()._account_samples(accounted, loss, lost=lost)

    def _undo_buffers(self) -> None:
        if self._pending is None:
            super()._undo_buffers()
        # Otherwise the step may still be taken, and then they stay.

    def _seed(self, *, begins: bool) -> None:
        """As it was bound: workers of a replica draw the same numbers."""

    def finish(self) -> State:
        """End training; return the state of the whole model, whatever the group is by then."""
        super().finish()
        return PresentState({}, {}, lambda: self._bound.state())  # noqa: PLW0108 - that of later

    def _regroup(self, planned: Regroup | None = None) -> None:
        """Form the next group, and continue with parts of the model that belong to it.

        Raises:
            RowLeftOut: the others continue without this worker's row.
        """
        for _ in range(_ATTEMPTS):
            former = self._group
            if planned is None:
                self._formation.notices.leave(former.epoch, broken=True)
            fresh = self._done == FRESH
            group = self._formation.next(former.epoch, planned, stays=fresh)
            planned = None
            self._traffic.regroup(group)
            former.close()
            self._group, self.rank, self.workers = group, group.rank, group.size
            # Before anything is made anew: if this group breaks, too, the former part is all that
            # this worker has of the state.
            before = dict(vars(self))
            try:
                with group.watched():
                    self._move(group)
            except (PeerLost, DamagedCheckpoint):
                group.free()
                self._go_back_to(before)
                continue
            break
        else:
            raise RuntimeError(f"{_ATTEMPTS} groups in a row were lost before they had a state")
        # Modules with hooks refer to themselves, and would stay beside the new ones for a while.
        del before
        gc.collect()
        if self.rank == 0:
            ranks = ", ".join(str(rank) for rank in group.names)
            detail = {"epoch": str(group.epoch), "workers": ranks, "step": str(self._stepped + 1)}
            self._recorder.event("group", detail)

    def _go_back_to(self, before: dict[str, Any]) -> None:
        """Have the parts of the model again that belong to the former group."""
        done, result = self._done, self._result
        kept = {name: vars(self)[name] for name in ("_pending", "_file") if name in vars(self)}
        vars(self).update(before | kept)
        if before["_done"] != FRESH:
            self._done, self._result = done, result
        self._release()

    def _move(self, group: Group) -> None:
        """Agree on the state, and take it over into new parts of the model."""
        own = torch.tensor([self._done, self._pending is not None], dtype=torch.int64)
        everyone = own.new_empty(group.size, len(own))
        group.gather(everyone, own)
        counts = everyone[:, 0].tolist()
        known = [count for count in counts if count != FRESH]
        if max(known, default=0) == 0:
            # Nothing is done yet, also if some have begun in a group that was lost at once.
            self._pending = None
            self._bind(self._strategy, group)
            self._agreement.begin()
            self._await_all()
            self._done = 0
            return
        if max(known) - min(known) > 1:
            raise RuntimeError(
                f"workers {group.names} have completed {counts} operations of the run, which "
                "differ by more than 1: every worker must call the same methods of its trainer"
            )
        ahead = max(known)
        fresh = self._done == FRESH
        donor = counts.index(ahead)
        give = self._give if donor == group.rank else None
        (numbers, position), _ = hand_over(group, donor, give, _POSITION_LIMIT)
        if not fresh:
            self._settle(ahead, position["result"])
        stored = self._hand_over(group, counts)
        former = None if fresh else self._state
        self._bind(self._strategy, group)
        self._state.take_numbers(former.numbers() if former is not None else numbers)
        load_tensors(self._bound, self._average, stored)
        if fresh:
            self._take_position(position)
        if self._checkpoints is not None:
            self._checkpoints.regroup(group)
            self._checkpoints = self._make_checkpoints(self._storing)
        seed_all(mix(self.job.seed, 1, self._bound.replica, group.epoch))
        # Until here, each worker can go back to its former part, or read what was written.
        self._await_all()
        self._done = ahead
        self._release()

    def _settle(self, ahead: int, result: Any) -> None:
        """Take a step that others have completed, or give it up."""
        share, self._pending = self._pending, None
        if self._done == ahead:
            if share is not None:
                self._buffers.restore()
            return
        if share is not None:
            self._bound.step(self._bound.counts)
            self._bound.settle()
        if share is not None and self._average is not None:
            self._average.update(share.total / share.whole)
        self._done, self._result = ahead, result

    def _give(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What another worker needs to continue from here, but for tensors."""
        _, position = super()._give()
        return self._state.numbers(), position

    def _hand_over(self, group: Group, counts: list[int]) -> HandedOver:
        """The state of the run, which the workers of the first row that has it write.

        Of a row that was joining when its group was lost, only some workers may have it.
        """
        size = self._strategy.row
        rows = range(0, group.size, size)
        whole = [first for first in rows if FRESH not in counts[first : first + size]]
        if not whole:
            raise RuntimeError("no replica has the whole state of the run any more")
        first = whole[0]
        place = [0, 0]
        if first <= group.rank < first + size:
            self._file = reserve()
            place = [os.getpid(), self._file]
            member = f"worker-{group.rank - first}"
            content = MemoryContent(member, self._place(group), self._member_state())
            MemoryFile(f"/proc/self/fd/{self._file}").write(content)
        everyone = torch.empty(group.size, 2, dtype=torch.int64)
        group.gather(everyone, torch.tensor(place, dtype=torch.int64))
        row = everyone[first : first + size].tolist()
        return HandedOver([f"/proc/{pid}/fd/{descriptor}" for pid, descriptor in row])

    def _place(self, group: Group) -> CheckpointPlace:
        return CheckpointPlace(
            samples=group.epoch,
            step=0,
            strategy=str(self._strategy),
            workers=group.size,
            seconds=0.0,
            settings={},
            aliases={},
        )

    def _member_state(self) -> MemberState:
        # An interrupted step may have left parameters gathered.
        self._bound.changed_parameters()
        held = pieces(self._bound, self._average, str(self._strategy), everything=True)
        numbers = optimizer_state.numbers(self._bound.optimizer, self._bound.stepped())
        return MemberState(held, numbers)

    def _release(self) -> None:
        """Free the memory with this worker's part of the state."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


@dataclass(frozen=True, eq=False)
class PresentState(State):
    """The state of a model that may be divided anew before it is fetched."""

    of_now: Callable[[], State]
    """Returns the state, as the model is divided now."""

    def save(self, path: Path) -> str:
        """As in `State`."""
        return self.of_now().save(path)

    def fetch(self) -> Iterator[tuple[str, torch.Tensor]]:
        """As in `State`."""
        return self.of_now().fetch()
