"""Trainer of a worker whose group may lose members and get new ones.

A run is a sequence of operations that all workers carry out together: steps, evaluations, looks at
the clock, the end. Each of them contains a collective that needs data of every member, so no worker
completes an operation that another one has not begun: when a member is lost, the survivors have
completed equally many operations, or some have completed one more. In the next group they compare
these numbers. If they differ, those behind take the result and the state from one that is ahead;
then all repeat the operation that none has completed, with the same global batch divided among
those who are present. A newcomer has completed none, and takes everything.
"""

from __future__ import annotations

import zlib
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from manyhands.failure import Diverged, PeerLost
from manyhands.live.member.divergence import Divergence
from manyhands.live.processes.incarnation import incarnation
from manyhands.live.worker.checkpoints.agreement import Decision
from manyhands.live.worker.lockstep.handover import hand_over
from manyhands.live.worker.lockstep.kept_residuals import KeptResiduals
from manyhands.live.worker.lockstep.link_times import time_links
from manyhands.live.worker.lockstep.trainer_state import KeptBuffers, TrainerState, limit_of
from manyhands.live.worker.trainer import Trainer
from manyhands.sampling.permutation import mix
from manyhands.seeding import seed_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from manyhands.files.checkpoint import State
    from manyhands.job import Job
    from manyhands.live.hosts.host_list import Hosts
    from manyhands.live.member.progress import Progress
    from manyhands.live.worker.checkpoints.storing_plan import StoredIn, StoringPlan
    from manyhands.live.worker.lockstep.dealing import Batch
    from manyhands.live.worker.lockstep.group_formation import GroupFormation
    from manyhands.live.worker.slowdown import Slowdown
    from manyhands.placements import Placement
    from manyhands.sampling.permutation import Share
    from manyhands.trace import Phase, Recorder
    from manyhands.transport.collectives import Group
    from manyhands.wire.regrouping import Regroup

Result = TypeVar("Result")

FRESH = -1
"""In place of the number of completed operations: a worker without the state of the run."""


class ElasticTrainer(Trainer):
    """The training of one worker in a group that may change; see `Trainer`.

    It is made in a group of its own; `join` waits for the others.

    Args:
        job: the job.
        strategy: a placement whose workers can be replaced.
        formation: forms the groups.
        workers: number of workers of the run.
        device: what this worker computes on.
        recorder: this worker's trace.
        progress: what heartbeats report.
        clock: a source of seconds.
        pacer: slows this worker down.
        storing: where checkpoints are stored, and from which one the run continues.
    """

    def __init__(
        self,
        job: Job,
        strategy: Placement,
        formation: GroupFormation,
        workers: int,
        device: torch.device,
        recorder: Recorder,
        progress: Progress,
        clock: Callable[[], float],
        pacer: Slowdown,
        storing: StoringPlan | None = None,
    ) -> None:
        self._formation = formation
        self._storing = storing
        self._planned = workers
        super().__init__(job, strategy, formation.alone(), device, recorder, progress, clock, pacer)
        # The coordinator counts the samples of a run whose workers may be lost.
        progress.accounts = False
        self._done = FRESH
        """Operations completed."""
        self._result: Any = None
        """The result of the last one: numbers, for workers that did not complete it."""
        self._continues = False
        self._repeated = 0
        self._dealt = 0
        self._lost = 0
        """Samples of steps that were not taken: the gradient was not finite."""
        self._refused = False

    def _bind(self, strategy: Placement, group: Group) -> None:
        super()._bind(strategy, group)
        if self._planned > 1:
            for loss in self._counted:
                loss.divided = str(strategy)
        self._divergence = Divergence(
            self.job, self._formation.rank, self._recorder, self.model.parameters
        )
        self._buffers = KeptBuffers(self.model)
        self._residuals = KeptResiduals(self._bound)
        self._state = TrainerState(
            self.model,
            self.optimizer,
            self._average,
            self._scale,
            self._improvement,
            self._norms,
            self._schedule,
        )

    def join(self) -> None:
        """Wait for the first group of this worker, and take the state of the run.

        Raises:
            RunOver: the run is over.
        """
        if not self._is_awaited:
            self._regroup()
        else:
            with self._exchanging():
                self._regroup()
        # Of processes that joined from other hosts the incarnation does not tell whether they have
        # predecessors; that the run has operations behind it does.
        begins = self._done == 0
        self._seed(begins=begins)
        self._checkpoints = self._make_checkpoints(self._storing)
        if begins and self._storing is not None and self._storing.resume is not None:
            self._complete(self._resume, self._adopt_resumption)

    def _seed(self, *, begins: bool) -> None:
        """Seed what the model draws from now on."""
        again = () if begins else (incarnation(),)
        seed_all(mix(self.job.seed, 1, self._formation.rank, *again))

    @property
    def _is_awaited(self) -> bool:
        """Whether the others wait for this worker to join: it is the first of its rank."""
        return incarnation() == 1

    def _resume(self) -> None:
        """Continue from the stored state; every worker reads it."""
        if self._checkpoints is not None:
            self._since = self._checkpoints.restore()
        self._result = list(self._since)
        self._adopt_resumption()
        self._await_all()

    def _adopt_resumption(self) -> None:
        samples, steps = self._result
        self._since, self._dealt, self._stepped = (samples, steps), samples, steps - 1

    def step(self, batch: Batch) -> torch.Tensor:
        """Train on a batch; repeated with another part of the global batch if a worker is lost."""
        if batch is not self._due or self._stepped == batch.step:
            return super().step(batch)  # raises
        planned = self._formation.due(batch.step)
        if planned is not None:
            self._wait_for_group(planned)
            self._deal_again(batch.step)
            self._due = self._next_batch()
        train, adopt = partial(self._train, batch.step), partial(self._adopt_step, batch.step)
        return self._complete(train, adopt, batch.step)

    def _present(self, step: int) -> Batch:
        """This worker's part of the batch of a step, as it is divided now."""
        due = self._due
        if due is None or due.step != step:
            raise RuntimeError(f"the batch of step {step} was not dealt")
        return due

    def _train(self, step: int) -> torch.Tensor:
        due = self._present(step)
        loss = super().step(due)
        self._result = [float(loss), int(self._refused)]
        self._note_continuation(step)
        self._count(due.share)
        return loss

    def _account_samples(self, share: Share, loss: torch.Tensor, *, lost: bool) -> None:
        super()._account_samples(share, loss, lost=lost)
        self._refused = lost

    def _count(self, share: Share) -> None:
        """Count the samples of all workers in a step that is complete."""
        self._dealt = share.dealt + share.total
        self._lost += share.total if self._refused else 0

    def _note_continuation(self, step: int) -> None:
        """Record the first step of a group after the first one."""
        if self._continues and self.rank == 0:
            self._recorder.event("continued", {"step": str(step)})
        self._continues = False

    def _adopt_step(self, step: int) -> torch.Tensor:
        """Take a step as done: another worker has completed it, with this worker's part."""
        share = self._present(step).share
        loss, refused = self._result
        self._refused = bool(refused)
        samples = 0 if refused else share.samples
        self._recorder.count(samples=samples, steps=1)
        self._progress.samples += samples
        self._progress.step = step + 1
        self._stepped = step
        self._count(share)
        return torch.tensor(loss)

    def evaluate(self) -> dict[str, float]:
        """The loss and the job's metrics on its validation data, exact over all workers."""
        if self._due is None and self._stepped >= 0:
            # This worker has joined at a step; the others evaluated before they began.
            return self.values
        return self._complete(self._evaluate_all, self._adopt_values)

    def _evaluate_all(self) -> dict[str, float]:
        self._result = super().evaluate()
        return self.values

    def _adopt_values(self) -> dict[str, float]:
        self.values = dict(self._result)
        return self.values

    def _look_at_clock(self, step: int) -> Decision:
        if not self._agreement.is_due(step):
            return Decision()
        return self._complete(partial(self._look, step), self._adopt_look)

    def _look(self, step: int) -> Decision:
        decision = super()._look_at_clock(step)
        self._result = [*map(int, decision), self._agreement.next_look]
        return decision

    def _adopt_look(self) -> Decision:
        *decision, self._agreement.next_look = self._result
        return Decision(*map(bool, decision))

    def _store_checkpoint(self, dealt: int, steps: int, to: StoredIn) -> None:
        """Store a checkpoint; again, if a worker is lost meanwhile."""

        def store() -> None:
            self._await_all()
            super(ElasticTrainer, self)._store_checkpoint(dealt, steps, to)

        self._complete(store, lambda: None)

    def _agree(self, decision: torch.Tensor) -> None:
        # A sum, because the first worker could complete a broadcast before others begin it.
        if self.rank != 0:
            decision.zero_()
        self._group.sum_small(decision)

    def finish(self) -> State:
        """End training; return the state of the whole model."""
        return self._complete(self._finish, self._bound.state)

    def _finish(self) -> State:
        state = super().finish()
        self._await_all()
        return state

    def store(self, save: Callable[[], object]) -> None:
        """As in `Trainer`; the others wait, and another one stores it if the first one is lost."""

        def all_save() -> None:
            super(ElasticTrainer, self).store(save)
            self._await_all()

        self._complete(all_save, lambda: None)

    def time_links(self, hosts: Hosts) -> None:
        """Measure the links between hosts, for a calibration; training begins afterwards."""
        begun = self._clock()
        size = sum(one.numel() * one.element_size() for one in self.model.parameters())
        time_links(self._group, hosts, size, self._recorder)
        self._agreement.continue_from(begun - self._clock(), 0)

    def close(self) -> None:
        """Close the group."""
        self._group.close()

    def abandon(self) -> None:
        """End what runs beside the training, and close the group: another trainer follows."""
        self._loading.close()
        self._group.close()
        self._progress.phase = "start"

    def _await_all(self) -> None:
        with self._exchanging():
            self._group.sum_small(torch.zeros(1))

    def _complete(
        self,
        operate: Callable[[], Result],
        adopt: Callable[[], Result],
        step: int | None = None,
    ) -> Result:
        """Carry out an operation, in as many groups as it takes.

        Args:
            operate: the operation.
            adopt: called instead if another worker has completed it.
            step: its number, if it is a step.
        """
        before = self._done
        while True:
            # Before the operation, which may change them and be interrupted: the repetition must
            # begin with the same ones.
            self._buffers.keep()
            self._residuals.begin(steps=step is not None)
            scale = dict(vars(self._scale)) if self._scale is not None else {}
            phase = self._traffic.phase
            try:
                result = operate()
            except PeerLost as error:
                if isinstance(error, Diverged):
                    raise
                # Before the others are waited for: they may be blocked in this collective.
                self._group.free()
            else:
                # Only when the operation is complete, and nothing follows that could be
                # interrupted: this number is compared with those of the others in the next group.
                self._done += 1
                self._residuals.end()
                self._report_samples()
                return result
            # Before the next group is waited for: the state that a member hands over is that of
            # before the operation.
            self._undo(scale, phase)
            self._wait_for_group()
            if self._done > before:
                result = adopt()
                self._report_samples()
                self._deal_again(self._stepped + 1)
                return result
            self._deal_again(self._stepped + 1)
            if step is not None:
                self._due = self._next_batch()
                self._note_repetition(self._present(step))

    def _report_samples(self) -> None:
        notices = self._formation.notices
        notices.dealt, notices.lost = self._dealt, self._lost

    def _undo(self, scale: dict[str, Any], phase: Phase) -> None:
        """Undo what an interrupted operation has changed."""
        self._undo_buffers()
        if self._scale is not None:
            vars(self._scale).update(scale)
        self._traffic.enter(phase)
        self._waits.end()
        self._waits.take()
        self._waits.take_coding()
        for loss in self._counted:
            loss.take()

    def _undo_buffers(self) -> None:
        self._buffers.restore()

    def _deal_again(self, step: int) -> None:
        """Divide the global batches from this step on among the members of now."""
        if "_dealing" in vars(self):
            self._dealing.deal_again(self._bound, step)

    def _note_repetition(self, batch: Batch) -> None:
        self._repeated += batch.share.total
        self._formation.notices.repeated = self._repeated
        if self.rank == 0:
            detail = {"step": str(batch.step), "samples": str(batch.share.total)}
            self._recorder.event("repeated", detail)

    def _wait_for_group(self, planned: Regroup | None = None) -> None:
        begun = self._clock()
        with self._exchanging():
            self._regroup(planned)
        self._continues = True
        self._recorder.span("wait", begun, self._clock() - begun, self._stepped + 1)

    def _regroup(self, planned: Regroup | None = None) -> None:
        """Form the next group, and agree on one state; again, if that group breaks, too."""
        former_residuals, done = self._residuals.leave(self.workers), self._done
        while True:
            former = self._group
            if planned is None:
                # Reported before the next group is waited for: if no member is lost, the
                # coordinator replaces the group only for this report.
                self._formation.notices.leave(former.epoch, broken=True)
            group = self._formation.next(former.epoch, planned)
            # Only the first group is planned; if it breaks, the coordinator announces the next one.
            planned = None
            if group.size == 1:
                # A worker alone sends nothing.
                self._updates.note_residual("residual/group")
            # Before the former group is closed, whose sockets have the counts of its bytes.
            self._traffic.regroup(group)
            former.close()
            self._group, self.rank, self.workers = group, group.rank, group.size
            for part in (self._finite, self._replicas, self._checkpoints, self._weights):
                if part is not None:
                    part.regroup(group)
            for loss in self._counted:
                loss.forget()
            try:
                with group.watched():
                    self._bring_into_line()
                    self._finite.keep_buffers()
                    self._strategy.regroup(self._bound, group, self._waits, self.job.seed)
                    former_residuals.carry(self._bound, repeats=self._done == done)
            except PeerLost:
                group.free()
                continue
            break
        if self.rank == 0:
            ranks = ", ".join(str(rank) for rank in group.names)
            detail = {"epoch": str(group.epoch), "workers": ranks, "step": str(self._stepped + 1)}
            self._recorder.event("group", detail)
            self._bound.record_words(self._recorder)

    def _bring_into_line(self) -> None:
        """Have all members of a new group take the state of one that is ahead."""
        group = self._group
        own = torch.tensor([self._done, _likeness(self.model)], dtype=torch.int64)
        everyone = own.new_empty(group.size, len(own))
        group.gather(everyone, own)
        counts, kinds = (column.tolist() for column in everyone.unbind(1))
        if len({*kinds}) > 1:
            raise ValueError(
                "the models of the workers differ in parameters or buffers: the job's model must "
                "be built in the same way in every process"
            )
        known = [count for count in counts if count != FRESH]
        if not known:
            self._begin(group)
            return
        # Every operation has a collective that needs all members, so none is two ahead: more is an
        # error in how the trainer is called, and a state handed over would hide it.
        if max(known) - min(known) > 1:
            raise RuntimeError(
                f"workers {group.names} have completed {counts} operations of the run, which "
                "differ by more than 1: every worker must call the same methods of its trainer"
            )
        # Replicas after the same operation are equal to the bit: nothing is sent
        # (`docs/decisions/0071-elastic-lockstep.md`).
        if min(counts) == max(counts):
            return
        donor = counts.index(max(counts))
        give = self._give if donor == group.rank else None
        (state, position), _ = hand_over(group, donor, give, limit_of(self.model))
        if self._done == FRESH:
            self._state.take_over(state)
            self._take_position(position)
        elif self._done < counts[donor]:
            self._state.catch_up(state)
            self._result = position["result"]
        # Last: a worker that loses its group while the state arrives still counts as one that lacks
        # it.
        self._done = counts[donor]

    def _give(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What another worker needs to continue from here."""
        position = {
            "stepped": self._stepped,
            "dealt": self._dealt,
            "since": self._since,
            "repeated": self._repeated,
            "lost": self._lost,
            "clock": self._agreement.position(),
            "values": self.values,
            "result": self._result,
        }
        return self._state.take(), position

    def _take_position(self, position: dict[str, Any]) -> None:
        self._stepped = position["stepped"]
        self._dealt = position["dealt"]
        self._since = tuple(position["since"])
        self._repeated = position["repeated"]
        self._lost = position["lost"]
        self._agreement.take_position(position["clock"])
        self.values = position["values"]
        self._result = position["result"]
        self._progress.step = self._stepped + 1

    def _begin(self, group: Group) -> None:
        """Have all members begin with the values of the first one, as DDP does."""
        values = [*self.model.parameters(), *self.model.buffers()]
        give = (lambda: [one.detach() for one in values]) if group.rank == 0 else None
        _, given = hand_over(group, 0, give, limit_of(self.model))
        if group.rank != 0:
            self._state.set_values(given)
        self._agreement.begin()
        self._done = 0


def _likeness(model: torch.nn.Module) -> int:
    """A number that is the same for models with the same parameters and buffers."""
    named = (*model.named_parameters(), *model.named_buffers())
    about = [(name, str(one.dtype), tuple(one.shape)) for name, one in named]
    return zlib.crc32(repr(about).encode())
