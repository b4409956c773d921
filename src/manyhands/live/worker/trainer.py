"""The trainer: a worker's training loop under a placement, for the default or a user's own loop."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

from manyhands.engine import out_of_memory
from manyhands.failure import OutOfMemory
from manyhands.live.member.divergence import Divergence
from manyhands.live.member.equal_replicas import EqualReplicas
from manyhands.live.member.finite_steps import FiniteSteps
from manyhands.live.worker.checkpoints.agreement import Agreement, Decision
from manyhands.live.worker.collective_traffic import CollectiveTraffic
from manyhands.live.worker.evaluation import evaluate, sum_totals
from manyhands.live.worker.loading import Loading, move
from manyhands.live.worker.lockstep.dealing import Batch, Dealing
from manyhands.live.worker.lockstep.early_return import early_return
from manyhands.live.worker.lockstep.step_times import spans_of
from manyhands.live.worker.lockstep.update_records import UpdateRecords
from manyhands.live.worker.lockstep.weight_exchange import WeightExchange
from manyhands.live.worker.slowdown import Slowdown
from manyhands.parameters.gradients import CalledModel
from manyhands.parameters.optional.clipping import MeanOf, norm
from manyhands.parameters.optional.loss_scale import LossScale
from manyhands.parameters.optional.plateau import PlateauSchedule, schedule_of
from manyhands.parameters.optional.weight_average import WeightAverage
from manyhands.parameters.weights.loss_weight import counting_each
from manyhands.placements.model.optimizer_check import check_steps
from manyhands.sampling.permutation import as_loaded, mix
from manyhands.sampling.stream_parts import StreamedBatch
from manyhands.seeding import seed_all
from manyhands.stopping import Improvement
from manyhands.transport.waits import Waits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from manyhands.files.checkpoint import State
    from manyhands.job import Job
    from manyhands.live.member.progress import Progress
    from manyhands.live.worker.checkpoints.lockstep import LockstepCheckpoints
    from manyhands.live.worker.checkpoints.storing_plan import StoredIn, StoringPlan
    from manyhands.placements import Placement
    from manyhands.sampling.permutation import Share
    from manyhands.trace import Recorder
    from manyhands.transport.collectives import Group


class Trainer:
    """The training of one worker: its batches, steps and evaluations.

    `mh.train(job, …, loop=loop)` calls a function at the top level of the script with a trainer,
    on every worker. Every batch must be stepped once, in order, on every worker, because the others
    wait for it. Evaluations, epochs and the end of the run happen inside `batches`.

    Attributes:
        job: the job.
        rank: this worker's number, from 0.
        workers: the number of workers.
        device: what this worker computes on.
        model: this worker's replica, or its part of the model.
        optimizer: the optimizer of the replica.
        values: the validation metrics of the last evaluation, by name.

    Example:
        >>> import manyhands as mh
        >>> def loop(trainer: mh.Trainer) -> None:
        ...     for batch in trainer.batches():
        ...         loss = trainer.step(batch)
        ...         if trainer.rank == 0 and batch.step % 100 == 0:
        ...             print(batch.epoch, loss.item(), trainer.values)
    """

    def __init__(
        self,
        job: Job,
        strategy: Placement,
        group: Group,
        device: torch.device,
        recorder: Recorder,
        progress: Progress,
        clock: Callable[[], float],
        pacer: Slowdown | None = None,
        storing: StoringPlan | None = None,
    ) -> None:
        self.job, self.device = job, device
        self.rank, self.workers = group.rank, group.size
        self.values: dict[str, float] = {}
        """The validation metrics of the last evaluation."""
        self._group, self._recorder = group, recorder
        recorder.follows_staleness = "staleness" in job.measures
        self._norms = MeanOf() if "gradient_norm" in job.measures else None
        self._progress, self._clock = progress, clock
        # In lockstep every sample that is dealt is trained on: none is repeated, none lost.
        progress.accounts = True
        self._pacer = pacer or Slowdown()
        self._waits = Waits(clock, self._note_wait, self._pacer.stretch)
        self._traffic = CollectiveTraffic(group, self._waits)
        self._strategy = strategy
        self._scale = LossScale() if job.autocast == "float16" else None
        self._improvement = Improvement(job.early_stopping)
        self._bind(strategy, group)
        self._loading, self._stepped = Loading(job, progress.mark), -1
        self._over = False
        """Whether `batches` has yielded all batches of the run."""
        self._dealing: Dealing
        self._due: Batch | None = None
        self._postponed = False
        """Whether an evaluation follows the end of the round."""
        self._later: StoredIn | None = None
        """Where a checkpoint is stored at the end of the round; None for none."""
        self._since = (0, 0)
        """Samples and steps of the run that this one continues."""
        self._agreement = Agreement(job, device, clock)
        self._checkpoints = self._make_checkpoints(storing)
        if self._checkpoints is not None:
            self._since = self._checkpoints.restore()

    def _bind(self, strategy: Placement, group: Group) -> None:
        """Make this worker's part of the model, and what belongs to it."""
        job, recorder = self.job, self._recorder
        seed_all(job.seed)
        with self._exchanging(), self._naming_remedy():
            counted, losses = counting_each(job)
            self._bound = bound = strategy.bind(counted, group, self.device, self._waits)
            note = check_steps(bound, strategy)
            bound.words = (*bound.words, *filter(None, [note]))
        self._counted, self._counting_job = losses, counted
        """What each objective is a mean over."""
        if bound.replicas > 1 or bound.parts > 1 or job.micro_batch is not None:
            for loss in losses:
                loss.divided = str(strategy)
        for loss in losses:
            loss.may_drop = job.collate_fn is not None
        self._weights = WeightExchange(bound, group, self._waits)
        if self.rank == 0:
            bound.record_words(recorder)
        self.model, self.optimizer = bound.model, bound.optimizer
        self._called = CalledModel(self.model, bound.forward)
        self._schedule = schedule_of(job, self.optimizer)
        self._average = None if job.ema is None else WeightAverage(job.ema, bound.own_parameters())
        # Random draws from here on (dropout) must differ between replicas, and agree on all
        # workers that hold parts of one replica.
        seed_all(mix(job.seed, 1, bound.replica))
        self._slow_down()
        self._finite = FiniteSteps(bound, group, self._waits, recorder, self._progress)
        self._replicas = EqualReplicas(bound, group, self._waits, recorder)
        self._updates = UpdateRecords(bound, recorder, self._progress, self._clock)
        self._divergence = Divergence(job, self.rank, recorder, self.model.parameters)

    def _make_checkpoints(self, storing: StoringPlan | None) -> LockstepCheckpoints | None:
        """What stores checkpoints and continues from one; None if the run does neither."""
        if storing is None or (storing.resume is None and self.job.checkpoint is None):
            return None
        from manyhands.live.worker.checkpoints.lockstep import LockstepCheckpoints  # noqa: PLC0415 - loads DTensor

        plateau = self._schedule if isinstance(self._schedule, PlateauSchedule) else None
        parts = {
            "stopping": self._improvement,
            "scale": self._scale,
            "plateau": plateau,
            "stream": self._loading.position if self.job.streams else None,
        }
        about = (storing, self.job, self._bound, self._group, self._average, parts)
        return LockstepCheckpoints(
            *about, self._counted, self.device, self._agreement, self._progress, self._recorder
        )

    def _slow_down(self) -> None:
        """Delay every gradient by the slowdown before it is sent."""
        if self._pacer.idle:
            return
        for one in filter(lambda one: one.requires_grad, self.model.parameters()):
            one.register_post_accumulate_grad_hook(lambda _: self._pacer.stretch())  # type: ignore[no-untyped-call]

    def batches(self) -> Iterator[Batch]:
        """This worker's batches until the run ends; evaluates where the job says.

        Raises:
            RuntimeError: it was called before, or a batch was not stepped.
        """
        yield from self._all_batches()
        self._over = True

    def _all_batches(self) -> Iterator[Batch]:
        if self._due is not None:
            raise RuntimeError(
                "trainer.batches() was called twice: it yields the batches of all epochs, so "
                "iterate over it once"
            )
        first = max(self._since[1], self._stepped + 1)
        about = (self.job, self._loading, self._bound, first, self._since)
        self._dealing = Dealing(*about, by_speed=self._strategy.deals_by_speed)
        self._traffic.enter("training")
        self._finite.keep_buffers()
        with contextlib.closing(self._dealing):
            while (given := self._next_batch()) is not None:
                self._due, share = given, given.share
                yield self._due
                if self._stepped != share.step:
                    raise RuntimeError(
                        f"batch {share.step} was not stepped: call trainer.step(batch) once for "
                        "every batch, because the other workers wait for this one"
                    )
                dealt = share.dealt + share.total
                if share.ends_epoch:
                    self._note_epoch(share.epoch, dealt)
                evaluates = self._is_due(share)
                if evaluates:
                    self._measure(dealt)
                    if self._reaches_target(dealt):
                        return
                over, due, *asked = self._look_at_clock(share.step)
                if due and not over and not self._bound.between_rounds:
                    self._postponed, due = True, False
                if (over or due) and not evaluates:
                    # Also if the time limit ended the run since the last evaluation.
                    self._measure(dealt)
                    over = over or self._reaches_target(dealt)
                if self._checkpoints:
                    to = self._checkpoints.due(share.dealt, dealt, *asked)
                    to = to if self._later is None else to | self._later
                    self._later = None
                    if to and not (over or share.is_last or self._bound.between_rounds):
                        self._later = to
                    elif to:
                        self._store_checkpoint(dealt, share.step + 1, to)
                if over or share.is_last:
                    return

    def _is_due(self, share: Share) -> bool:
        """Whether an evaluation follows a batch: one that is due within a round is at its end."""
        due = share.evaluates or self._postponed
        self._postponed = due and not share.is_last and not self._bound.between_rounds
        return due and not self._postponed

    def _next_batch(self) -> Batch | None:
        """This worker's part of the next global batch; None if there is none."""
        asked = self._clock()
        self._progress.phase = "data"
        share, loaded = next(self._dealing, (None, None))
        self._progress.phase = "compute"
        if share is None:
            return None
        if isinstance(loaded, StreamedBatch):
            self._loading.position.note(loaded)
            share, loaded = as_loaded(share, loaded), loaded.batch
            if not share.total:
                raise ValueError("the stream is empty: give Job(data=...) at least 1 sample")
        inputs, targets = self.job.divide(move(loaded, self.device))
        self._recorder.span("data", asked, self._clock() - asked, share.step)
        return Batch(inputs, targets, share)

    def step(self, batch: Batch) -> torch.Tensor:
        """Train on a batch.

        Args:
            batch: the last that `batches` gave.

        Returns:
            This worker's loss on the batch, the mean over its samples; the sum of the losses if the
            job has several objectives.

        Raises:
            RuntimeError: the batch is not the one that is due.
        """
        if batch is not self._due or self._stepped == batch.step:
            raise RuntimeError(
                f"batch {batch.step} is not the current batch; step each batch once, in the "
                "order in which trainer.batches() yields them"
            )
        # Before anything of this step: a step that is interrupted can be repeated.
        self._replicas.compare(batch.step - 1)
        self._dealing.balance(batch.step, self._group, self._waits, self._recorder)
        begun = self._clock()
        self._progress.phase = "compute"
        self._pacer.begin()
        share = batch.share
        weight = self._bound.weigh(share.samples, share.total)
        self._bound.ends_epoch = share.ends_epoch
        self._bound.counts = share.total / share.whole * self.job.lr_factor(share.dealt)
        if not self._bound.rescales:
            self._set_groups(share)
        spent, losses = 0.0, list[torch.Tensor]()
        with self._naming_remedy(), self._group.watched():
            for objective, counted in enumerate(self._counted):
                if self.job.objective_names:
                    self._bound.choose(objective)
                scale = 1.0 if self._scale is None else self._scale.factor
                with self._weights.balancing(share, counted):
                    about = (batch.inputs, batch.targets, weight * scale, share.computed)
                    losses.append(self._bound.gradient(*about))
                self._waits.end()
                applies = self._scale is None or self._finite.unscale(self._scale)
                self._weights.settle(share, counted)
                refused = applies and not self._finite.admits(losses[-1], batch, weight)
                spent += self._account_time(share, begun)
                if len(losses) == len(self._counted):
                    self._account_samples(share, sum(losses[1:], losses[0]), lost=refused)
                if self._bound.speaks:
                    self._divergence.training(losses[-1], share.dealt)
                begun = self._clock()
                if applies and not refused:
                    self._step(share)
                else:
                    self._bound.skip()
            if self._average is not None:
                self._bound.settle()
                self._average.update(share.total / share.whole)
        self._pacer.stretch()
        self._dealing.note(share.samples, spent + self._account_time(share, begun))
        self._updates.note(self.rank)
        self._progress.step, self._stepped = share.step + 1, batch.step
        return sum(losses[1:], losses[0])

    def _step(self, share: Share) -> None:
        """Step with the gradient that was computed."""
        if self._norms is not None:
            gradients = [one.grad for one in self._bound.consumed()]
            self._norms.add(norm([one for one in gradients if one is not None]))
        if self.job.clip is not None:
            self._bound.clip(self.job.clip)
        if self._bound.rescales:
            self._set_groups(share)
        self._bound.step(self._bound.counts)

    def _set_groups(self, share: Share) -> None:
        """Set what the job's scheduler sets, for the step with a batch."""
        if self._schedule is not None:
            self._schedule.apply(self.optimizer, share.dealt)

    def evaluate(self) -> dict[str, float]:
        """The loss and the job's metrics on its validation data, exact over all workers.

        Every worker must call it at the same step; each takes a part.

        Returns:
            The values by name, which `values` keeps.
        """
        begun = self._clock()
        before = self._traffic.phase
        self._traffic.enter("evaluation")
        with self._group.watched():
            self._average_buffers()
            self._progress.phase = "evaluate"
            self.values = self._evaluate()
            if self._average is not None:
                with self._averaged(self._average):
                    averaged = self._evaluate()
                self.values |= {f"ema_{name}": value for name, value in averaged.items()}
        self._waits.take()
        self._traffic.enter(before)
        self._recorder.span("evaluate", begun, self._clock() - begun, self._progress.step)
        return self.values

    def _evaluate(self) -> dict[str, float]:
        """The loss and the metrics at the present values of the parameters."""
        bound = self._bound
        totals = evaluate(
            self._counting_job,
            self.model,
            self.device,
            bound.replica,
            bound.replicas,
            self._answer if self.job.objective is None else self._called,
            loading=self._loading,
            speaks=bound.speaks,
        )
        with self._exchanging():
            return sum_totals(totals, self._group).values()

    @contextlib.contextmanager
    def _averaged(self, average: WeightAverage) -> Iterator[None]:
        """Context in which the model has the averaged parameters."""
        with average.in_place():
            self._bound.changed_parameters()
            yield
        self._bound.changed_parameters()

    def _answer(self, inputs: Any) -> Any:
        """The model's outputs, on the worker that reports for its replica; None on the others."""
        outputs = self._bound.outputs(inputs)
        return outputs if self._bound.speaks else None

    def finish(self) -> State:
        """End training; return the state of the whole model, whose tensors are fetched later."""
        if not self._over:
            share = None if self._due is None else self._due.share
            words = early_return(self.job, share, self._stepped)
            self._recorder.event("returned early", {"words": words})
        self._loading.close()
        if self._checkpoints is not None:
            self._checkpoints.close()
        self._divergence.finally_()
        self._finite.settle()
        if self._scale is not None and self._scale.skipped and self.rank == 0:
            self._recorder.event("overflows", {"steps": str(self._scale.skipped)})
        self._traffic.enter("idle")
        self._updates.note_residual("residual/end")
        self._average_buffers()
        self._traffic.record(self._recorder)
        return self._bound.state()

    def store(self, save: Callable[[], object]) -> None:
        """Store the model after `finish`; all workers call it.

        Args:
            save: stores the model on the first worker.
        """
        self._progress.phase = "finish"
        save()

    @contextlib.contextmanager
    def averaged(self) -> Iterator[State | None]:
        """After `finish`: the state with the averaged parameters; None if the job has none."""
        if self._average is None:
            yield None
            return
        with self._averaged(self._average):
            yield self._bound.state()

    def _account_samples(self, share: Share, loss: torch.Tensor, *, lost: bool) -> None:
        samples = share.samples if self._bound.speaks else 0
        self._recorder.count(samples=0 if lost else samples, steps=1)
        self._progress.samples += 0 if lost else samples
        if samples:
            self._progress.losses.append((loss, samples))

    def _account_time(self, share: Share, begun: float) -> float:
        """Record the spans of computation and waiting since `begun`; the seconds of computation."""
        now, waits, coding = self._clock(), self._waits.take(), self._waits.take_coding()
        computed = 0.0
        waits = waits if self.workers > 1 else []
        for kind, at, seconds in spans_of(begun, now, waits, coding, self._bound.waiting):
            self._recorder.span(kind, at, seconds, share.step)
            computed += seconds if kind == "compute" else 0.0
        return computed

    def _note_epoch(self, epoch: int, dealt: int) -> None:
        # The budget may end the last pass early, which then is no epoch.
        if self.rank == 0 and dealt % self.job.epoch_samples == 0:
            self._recorder.event("epoch", {"number": str(epoch), "samples": str(dealt)})

    def _measure(self, dealt: int) -> None:
        self._traffic.record(self._recorder)
        if self.job.validation is None:
            return
        values = self.evaluate()
        for name, value in values.items():
            if self.rank == 0:
                self._recorder.point(f"validation/{name}", value, samples=dealt)
        norms = self._norms.take() if self._norms is not None else None
        if norms and self.rank == 0:
            mean, count = norms
            self._recorder.point("measure/gradient_norm", mean, samples=dealt, weight=count)
        self._divergence.validation(values, dealt)
        if isinstance(self._schedule, PlateauSchedule):
            self._schedule.observe(values)
        self._agreement.evaluated()

    def _reaches_target(self, dealt: int) -> bool:
        """Whether validation values end the run; every worker has the same ones."""
        goal, rule = self.job.goal, self.job.early_stopping
        if goal is not None and goal.reached(self.values):
            event = ("target", {"target": str(goal), "samples": str(dealt)})
        elif self.job.validation is not None and self._improvement.is_over(self.values):
            event = ("stopped", {"why": str(rule), "samples": str(dealt)})
        else:
            return False
        if self.rank == 0:
            self._recorder.event(*event)
        return True

    def _look_at_clock(self, step: int) -> Decision:
        """What follows a step by the first worker's clock."""
        with self._exchanging():
            return self._agreement.look(step, self._agree)

    def _agree(self, decision: torch.Tensor) -> None:
        """Replace a decision by that of the first worker."""
        self._group.broadcast(decision)

    def _store_checkpoint(self, dealt: int, steps: int, to: StoredIn) -> None:
        """Store a checkpoint after a step; all workers do."""
        if self._checkpoints is not None:
            with self._exchanging("store"):
                self._checkpoints.store(dealt, steps, self._agreement.spent, to)

    def _average_buffers(self) -> None:
        with self._exchanging():
            self._bound.average_buffers()
        self._updates.note(self.rank)

    def _note_wait(self, waiting: bool) -> None:
        self._progress.phase = "exchange" if waiting else "compute"
        if not waiting:
            self._pacer.begin()

    @contextlib.contextmanager
    def _naming_remedy(self) -> Iterator[None]:
        """On an out-of-memory error, name strategies that need less memory."""
        try:
            yield
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            raise OutOfMemory(
                f"{self._strategy} needs more memory than worker {self.rank} has; "
                f"use {self._strategy.needs_less}"
            ) from error

    @contextlib.contextmanager
    def _exchanging(self, phase: str = "exchange") -> Iterator[None]:
        """Mark a collective outside a step, so that a missing worker is reported."""
        before, self._progress.phase = self._progress.phase, phase
        yield
        self._progress.phase = before
