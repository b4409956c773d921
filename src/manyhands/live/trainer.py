"""A worker's training loop, in our hands or in the user's."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from manyhands.live.evaluation import average_buffers, evaluate
from manyhands.live.loading import as_pair, batches, move
from manyhands.live.pacer import Pacer
from manyhands.parameters.clipping import clip_norm
from manyhands.parameters.weight import weighted_step
from manyhands.sampling import mix, shares

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from manyhands.job import Job
    from manyhands.live.progress import Progress
    from manyhands.placements import Placement
    from manyhands.sampling import Share
    from manyhands.trace import Recorder
    from manyhands.transport.collectives import Group

_AGREE_EVERY = 0.25
"""Seconds between two looks at the clock that all workers must agree on."""


@dataclass(frozen=True, eq=False)
class Batch:
    """One worker's part of one global batch."""

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

    A loop of one's own is

        def loop(trainer):
            for batch in trainer.batches():
                loss = trainer.step(batch)

    at the top level of the script, given as `mh.train(job, …, loop=loop)`. Every batch must be
    stepped once, in order, on every worker, because the others wait for it. Evaluations, epochs
    and the end of the run happen inside `batches`.
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
        pacer: Pacer | None = None,
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
        torch.manual_seed(job.seed)
        self.model = job.model().to(device)
        self.optimizer = job.optimizer(self.model)
        self._trained = {
            name: parameter
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad
        }
        with self._exchanging():
            self._module = strategy.apply(self.model, group)
        # What workers draw from now on (dropout) must differ between them.
        torch.manual_seed(mix(job.seed, 1, self.rank))
        self._pacer = pacer or Pacer()
        self._slow_down()
        self._ready = _LastGradient(self._trained, progress, clock)
        self._due: Batch | None = None
        self._stepped = -1
        self._begun = clock()
        self._next_look = 0

    def _slow_down(self) -> None:
        """Have every gradient be late by as much as it shall be, before it is sent."""
        if self._pacer.idle:
            return
        for parameter in self._trained.values():
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                lambda _: self._pacer.stretch()
            )

    def batches(self) -> Iterator[Batch]:
        """This worker's batches until the run ends; evaluates after every epoch."""
        if self._due is not None:
            raise RuntimeError(
                "trainer.batches() gives the batches of the whole run, all epochs of it, and was "
                "asked for already: one loop over it is enough"
            )
        budget = self.job.budget or sys.maxsize
        arguments = (len(self.job.data), self.job.batch_sizes, self.job.seed)
        deal = (*arguments, self.rank, self.workers, budget)
        data = batches(self.job, self.job.data, (share.indices for share in shares(*deal)))
        dealt, epoch_begun = 0, self._clock()
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
                self._end_epoch(share.epoch, dealt, self._clock() - epoch_begun)
                epoch_begun = self._clock()
            if self._is_over(share, dealt):
                if not share.ends_epoch:
                    # The time was up in mid-epoch: what was trained is measured all the same.
                    self._measure(dealt)
                return

    def step(self, batch: Batch) -> torch.Tensor:
        """Train on a batch; this worker's loss on it, the mean over its samples."""
        if batch is not self._due or self._stepped == batch.step:
            raise RuntimeError(
                f"batch {batch.step} is not the one that is due; step each batch once, in the "
                "order in which trainer.batches() gives them"
            )
        begun = self._clock()
        self._progress.phase = "compute"
        self._pacer.begin()
        loss = self._gradient(batch)
        reduced = self._clock()
        self._progress.phase = "compute"
        self._pacer.begin()
        self._clip()
        share = batch.share
        weighted_step(self.optimizer, share.total / share.whole * self.job.rate_after(share.dealt))
        self.optimizer.zero_grad()
        self._pacer.stretch()
        self._account(batch, begun, reduced, loss)
        self._stepped = batch.step
        return loss

    def evaluate(self) -> dict[str, float]:
        """The loss and the job's metrics on its validation data, exact over all workers.

        Every worker must call it at the same step; each takes a part.
        """
        begun = self._clock()
        with self._group.watched():
            self._average_buffers()
            self._progress.phase = "evaluate"
            totals = evaluate(self.job, self.model, self.device, self.rank, self.workers)
            with self._exchanging():
                self._group.sum(totals.tensor)
        self.values = totals.values()
        self._recorder.span("evaluate", begun, self._clock() - begun, self._progress.step)
        return self.values

    def finish(self) -> None:
        """Bring what only workers know about together: the buffers of their replicas."""
        self._average_buffers()
        self._record_traffic()

    def _gradient(self, batch: Batch) -> torch.Tensor:
        """Leave the mean gradient of the global batch in the parameters; this worker's loss.

        The engine averages over workers, so the loss of one with b of the batch's B samples is
        weighted by b·N/B. A worker without samples has the weight zero: it computes on another's
        and must not learn from them, so its buffers are put back.
        """
        share = batch.share
        weight = share.samples * self.workers / share.total
        kept = None if share.samples else [buffer.clone() for buffer in self.model.buffers()]
        with self._group.watched():
            loss: torch.Tensor = self.job.loss(self._module(batch.inputs), batch.targets)
            _check_scalar(loss)
            (loss if weight == 1 else loss * weight).backward()  # type: ignore[no-untyped-call]
        if kept is not None:
            with torch.no_grad():
                for buffer, before in zip(self.model.buffers(), kept, strict=True):
                    buffer.copy_(before)
        if share.step == 0:
            self._ready.settle()
            self._check_unused()
        return loss.detach()

    def _clip(self) -> None:
        """Limit the norm of the mean gradient, which is the same on all workers."""
        if self.job.clip is not None:
            groups = self.optimizer.param_groups
            trained = (parameter for group in groups for parameter in group["params"])
            clip_norm([one.grad for one in trained if one.grad is not None], self.job.clip)

    def _check_unused(self) -> None:
        if self.workers == 1 or getattr(self._module, "find_unused_parameters", False):
            return
        unused = [name for name, tensor in self._trained.items() if tensor.grad is None]
        if unused:
            raise RuntimeError(
                f"the loss does not depend on {len(unused)} parameters: {', '.join(unused[:8])}"
                f"{', …' if len(unused) > 8 else ''}; freeze them with requires_grad_(False), or "
                "use allreduce(find_unused=true) if only some steps leave them out"
            )

    def _account(self, batch: Batch, begun: float, reduced: float, loss: torch.Tensor) -> None:
        share, ready, now = batch.share, self._ready.at(begun, reduced), self._clock()
        self._recorder.span("compute", begun, ready - begun, share.step)
        if self.workers > 1:
            self._recorder.span("exchange", ready, reduced - ready, share.step)
        self._recorder.span("compute", reduced, now - reduced, share.step)
        self._recorder.count(samples=share.samples, steps=1)
        self._progress.samples += share.samples
        self._progress.step = share.step + 1
        if share.samples:
            self._progress.losses.append((loss, share.samples))

    def _end_epoch(self, epoch: int, dealt: int, seconds: float) -> None:
        # The budget may cut the last pass short, which then is no epoch.
        if self.rank == 0 and dealt % len(self.job.data) == 0:
            detail = {"number": str(epoch), "samples": str(dealt), "seconds": f"{seconds:.6f}"}
            self._recorder.event("epoch", detail)
        self._measure(dealt)

    def _measure(self, dealt: int) -> None:
        self._record_traffic()
        if self.job.validation is None:
            return
        for name, value in self.evaluate().items():
            if self.rank == 0:
                self._recorder.point(f"validation/{name}", value, samples=dealt)

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
            average_buffers(self.model, self._group)

    def _record_traffic(self) -> None:
        sent, received = self._group.traffic()
        self._recorder.traffic(sent=sent, received=received)

    @contextlib.contextmanager
    def _exchanging(self) -> Iterator[None]:
        """A collective outside a step: whoever is missing in it shall be named."""
        before, self._progress.phase = self._progress.phase, "exchange"
        yield
        self._progress.phase = before


class _LastGradient:
    """Tells when a worker's own gradients were ready: from then on it waits for others.

    The first step finds out which parameter's gradient comes last; from then on only that one
    is watched, so the cost does not grow with the model. On a GPU this is when the kernel was
    launched, not when it ended.
    """

    def __init__(
        self,
        parameters: dict[str, torch.nn.Parameter],
        progress: Progress,
        clock: Callable[[], float],
    ) -> None:
        self._at = -1.0
        self._last = ""
        self._progress = progress
        self._clock = clock
        self._handles = {
            name: parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                self._watch(name)
            )
            for name, parameter in parameters.items()
        }

    def _watch(self, name: str) -> Callable[[torch.Tensor], None]:
        def arrived(_: torch.Tensor) -> None:
            self._at, self._last = self._clock(), name
            self._progress.phase = "exchange"

        return arrived

    def settle(self) -> None:
        """Keep watching only the gradient that came last."""
        for name, handle in self._handles.items():
            if name != self._last:
                handle.remove()

    def at(self, begun: float, done: float) -> float:
        """The moment, in a step that lasted from `begun` to `done`."""
        return self._at if begun <= self._at <= done else done


def _check_scalar(loss: object) -> None:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise TypeError(
            "the loss must be one number for the batch, the mean over its samples; "
            f"got {getattr(loss, 'shape', type(loss).__name__)}"
        )
