"""A worker's training loop, in our hands or in the user's."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from manyhands.data.taking import as_pair
from manyhands.engine import out_of_memory
from manyhands.failure import OutOfMemory
from manyhands.live.member.divergence import Divergence
from manyhands.live.worker.evaluation import evaluate, sum_totals
from manyhands.live.worker.loading import Loading, move
from manyhands.live.worker.slowdown import Slowdown
from manyhands.parameters.ignored_targets import counting
from manyhands.sampling.permutation import mix, shares
from manyhands.seeding import seed_all
from manyhands.transport.waits import Waits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from manyhands.files.checkpoint import State
    from manyhands.job import Job
    from manyhands.live.member.progress import Progress
    from manyhands.placements import Placement
    from manyhands.sampling.permutation import Share
    from manyhands.trace import Recorder
    from manyhands.transport.collectives import Group

_MOST_WAITS = 64
"""Stretches of waiting within a step that the trace tells apart."""
_AGREE_EVERY = 0.25
"""Seconds between two looks at the clock that all workers must agree on."""


@dataclass(frozen=True, eq=False)
class Batch:
    """One worker's part of one global batch, as `Trainer.batches` gives it.

    Example:
        >>> import manyhands as mh
        >>> def loop(trainer: mh.Trainer) -> None:
        ...     for batch in trainer.batches():
        ...         print(batch.epoch, batch.step, len(batch.inputs), trainer.step(batch).item())
    """

    inputs: Any
    targets: Any
    share: Share

    @property
    def epoch(self) -> int:
        """The pass over the data that it belongs to, from 0."""
        return self.share.epoch

    @property
    def step(self) -> int:
        """Steps before it."""
        return self.share.step


class Trainer:
    """One worker's place in a run.

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
    ) -> None:
        self.job = job
        self.rank = group.rank
        self.workers = group.size
        self.device = device
        self.values: dict[str, float] = {}
        """The validation metrics of the last evaluation."""
        self._group = group
        self._recorder = recorder
        self._progress = progress
        self._clock = clock
        # Lockstep: a sample is trained on when it is dealt, so none is repeated and none lost.
        progress.accounts = True
        self._pacer = pacer or Slowdown()
        self._waits = Waits(clock, self._note_wait, self._pacer.stretch)
        seed_all(job.seed)
        self._strategy = strategy
        with self._exchanging(), self._naming_remedy():
            counted, loss = counting(job)
            self._bound = strategy.bind(counted, group, device, self._waits)
        if self._bound.replicas > 1 or self._bound.parts > 1 or job.micro_batch is not None:
            loss.divided = str(strategy)
        if self._bound.words and self.rank == 0:
            recorder.event("divided", {str(at): line for at, line in enumerate(self._bound.words)})
        self.model = self._bound.model
        self.optimizer = self._bound.optimizer
        # What replicas draw from now on (dropout) must differ between them, and be alike on all
        # workers that hold parts of one.
        seed_all(mix(job.seed, 1, self._bound.replica))
        self._slow_down()
        self._loading = Loading(job)
        self._divergence = Divergence(job, self.rank, recorder, self.model.parameters)
        self._due: Batch | None = None
        self._stepped = -1
        self._begun = clock()
        self._next_look = 0

    def _slow_down(self) -> None:
        """Have every gradient be late by as much as it shall be, before it is sent."""
        if self._pacer.idle:
            return
        for parameter in self.model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    lambda _: self._pacer.stretch()
                )

    def batches(self) -> Iterator[Batch]:
        """This worker's batches until the run ends; evaluates after every epoch.

        Raises:
            RuntimeError: it was called before, or a batch was not stepped.
        """
        if self._due is not None:
            raise RuntimeError(
                "trainer.batches() gives the batches of the whole run, all epochs of it, and was "
                "asked for already: one loop over it is enough"
            )
        budget = self.job.budget or sys.maxsize
        arguments = (len(self.job.data), self.job.batch_sizes, self.job.seed)
        deal = (*arguments, self._bound.replica, self._bound.replicas, budget, self._bound.copies)
        wanted = ((share.epoch, share.indices) for share in shares(*deal))
        data = self._loading.batches(self.job.data, wanted)
        dealt = 0
        for share in shares(*deal):
            asked = self._clock()
            inputs, targets = as_pair(move(next(data), self.device))
            self._recorder.span("data", asked, self._clock() - asked, share.step)
            self._due = Batch(inputs, targets, share)
            yield self._due
            if self._stepped != share.step:
                raise RuntimeError(
                    f"batch {share.step} was not stepped: call trainer.step(batch) once for "
                    "every batch, or the other workers wait for this one for ever"
                )
            dealt += share.total
            if share.ends_epoch:
                self._end_epoch(share.epoch, dealt)
            if self._is_over(share, dealt):
                if not share.ends_epoch:
                    # The time was up in mid-epoch: what was trained is measured all the same.
                    self._measure(dealt)
                return

    def step(self, batch: Batch) -> torch.Tensor:
        """Train on a batch.

        Args:
            batch: the last that `batches` gave.

        Returns:
            This worker's loss on the batch, the mean over its samples.

        Raises:
            RuntimeError: the batch is not the one that is due.
        """
        if batch is not self._due or self._stepped == batch.step:
            raise RuntimeError(
                f"batch {batch.step} is not the one that is due; step each batch once, in the "
                "order in which trainer.batches() gives them"
            )
        begun = self._clock()
        self._progress.phase = "compute"
        self._pacer.begin()
        share = batch.share
        weight = self._bound.weigh(share.samples, share.total)
        self._bound.counts = share.total / share.whole * self.job.lr_factor(share.dealt)
        with self._naming_remedy(), self._group.watched():
            loss = self._bound.gradient(batch.inputs, batch.targets, weight)
            self._waits.end()
            self._account_gradient(share, begun, loss)
            if self._bound.speaks:
                self._divergence.training(loss, share.dealt)
            begun = self._clock()
            if self.job.clip is not None:
                self._bound.clip(self.job.clip)
            self._bound.step(self._bound.counts)
        self._pacer.stretch()
        self._account_time(share, begun)
        self._account_updates()
        self._progress.step = share.step + 1
        self._stepped = batch.step
        return loss

    def evaluate(self) -> dict[str, float]:
        """The loss and the job's metrics on its validation data, exact over all workers.

        Every worker must call it at the same step; each takes a part.

        Returns:
            The values by name, which `values` keeps.
        """
        begun = self._clock()
        with self._group.watched():
            self._average_buffers()
            self._progress.phase = "evaluate"
            bound = self._bound
            totals = evaluate(
                self.job,
                self.model,
                self.device,
                bound.replica,
                bound.replicas,
                self._answer,
                loading=self._loading,
            )
            with self._exchanging():
                totals = sum_totals(totals, self._group)
        self._waits.take()
        self.values = totals.values()
        self._recorder.span("evaluate", begun, self._clock() - begun, self._progress.step)
        return self.values

    def _answer(self, inputs: Any) -> Any:
        """The model's outputs, on the worker that speaks for its replica."""
        outputs = self._bound.outputs(inputs)
        return outputs if self._bound.speaks else None

    def finish(self) -> State:
        """Bring what only workers know about together: the whole model's state, to be fetched."""
        self._loading.close()
        self._divergence.finally_()
        self._average_buffers()
        self._record_traffic()
        return self._bound.state()

    def _account_gradient(self, share: Share, begun: float, loss: torch.Tensor) -> None:
        self._account_time(share, begun)
        samples = share.samples if self._bound.speaks else 0
        self._recorder.count(samples=samples, steps=1)
        self._progress.samples += samples
        if samples:
            self._progress.losses.append((loss, samples))

    def _account_time(self, share: Share, begun: float) -> None:
        """Note where the time since `begun` went.

        Of a worker that waited in very many places the trace shows it in one, at the end.
        """
        now, waits = self._clock(), self._waits.take()
        if len(waits) > _MOST_WAITS:
            waited = min(sum(seconds for _, seconds in waits), now - begun)
            waits = [(now - waited, waited)]
        for start, seconds in waits if self.workers > 1 else ():
            self._recorder.span("compute", begun, start - begun, share.step)
            self._recorder.span(self._bound.waiting, start, seconds, share.step)
            begun = start + seconds
        self._recorder.span("compute", begun, now - begun, share.step)

    def _account_updates(self) -> None:
        for versions in self._bound.applied():
            self._recorder.staleness(versions, f"worker-{self.rank}")

    def _end_epoch(self, epoch: int, dealt: int) -> None:
        # The budget may cut the last pass short, which then is no epoch.
        if self.rank == 0 and dealt % len(self.job.data) == 0:
            self._recorder.event("epoch", {"number": str(epoch), "samples": str(dealt)})
        self._measure(dealt)

    def _measure(self, dealt: int) -> None:
        self._record_traffic()
        if self.job.validation is None:
            return
        values = self.evaluate()
        for name, value in values.items():
            if self.rank == 0:
                self._recorder.point(f"validation/{name}", value, samples=dealt)
        self._divergence.validation(values, dealt)

    def _is_over(self, share: Share, dealt: int) -> bool:
        goal = self.job.goal
        if goal and share.ends_epoch and goal.reached(self.values):
            if self.rank == 0:
                self._recorder.event("target", {"target": str(goal), "samples": str(dealt)})
            return True
        return self.job.seconds is not None and self._time_is_up(share.step)

    def _time_is_up(self, step: int) -> bool:
        """Whether the job's seconds are over, as the first worker's clock says.

        Workers must leave at the same step, so they agree: now and then the first one tells the
        others, together with the step at which it will tell them next.
        """
        if step < self._next_look:
            return False
        spent = self._clock() - self._begun
        pace = spent / (step + 1)
        over = int(spent >= (self.job.seconds or 0.0))
        word = torch.tensor([over, step + max(1, int(_AGREE_EVERY / pace))], device=self.device)
        with self._exchanging():
            self._group.broadcast(word)
        over, self._next_look = word.tolist()
        return bool(over)

    def _average_buffers(self) -> None:
        with self._exchanging():
            self._bound.average_buffers()
        self._account_updates()

    def _record_traffic(self) -> None:
        sent, received = self._group.traffic()
        self._recorder.traffic(sent=sent, received=received)

    def _note_wait(self, waiting: bool) -> None:
        self._progress.phase = "exchange" if waiting else "compute"
        if not waiting:
            self._pacer.begin()

    @contextlib.contextmanager
    def _naming_remedy(self) -> Iterator[None]:
        """Say which strategies need less memory, if there is too little."""
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
    def _exchanging(self) -> Iterator[None]:
        """A collective outside a step: whoever is missing in it shall be named."""
        before, self._progress.phase = self._progress.phase, "exchange"
        yield
        self._progress.phase = before
