"""Steps with gradients that have NaN or infinity are not taken, under placements.

All workers of `single` and `allreduce` have the same gradient after the reduction, so all of them
see a value that is not finite, and none steps. Where each worker has a part of the gradient, those
that step together tell each other in every step what they found: one sum of three numbers.

Only then they ask each other whose gradient it was: the worker's with a loss that is not finite;
or, if all losses are finite and each worker can compute its own gradient again, it does. What
happened once and does not happen again has no name.

Under a codec a worker does not send a gradient that is not finite, because the codec might make
finite numbers of it: it sends zeros, and the others step. In a pipeline that is not drained, each
stage has refused its part of an update before the step ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch

from manyhands.codecs.kernels.finite import not_finite, not_finite_among
from manyhands.parameters.optional.loss_scale import overflows
from manyhands.trace import NotApplied

if TYPE_CHECKING:
    from manyhands.codecs.kernels.finite import NotFinite
    from manyhands.live.member.progress import Progress
    from manyhands.parameters.optional.loss_scale import LossScale
    from manyhands.placements.bound import Bound
    from manyhands.sampling.permutation import Share
    from manyhands.trace import Recorder
    from manyhands.transport.collectives import Group
    from manyhands.transport.waits import Waits

_FOUND: tuple[NotFinite, ...] = ("", "NaN", "infinity")


class ComputedBatch(Protocol):
    """A batch, as far as its gradient may have to be computed again."""

    @property
    def inputs(self) -> Any:
        """The samples."""

    @property
    def targets(self) -> Any:
        """Their targets."""

    @property
    def share(self) -> Share:
        """Their place in the run."""


class FiniteSteps:
    """Decides whether workers step with the gradient that they have computed.

    Args:
        bound: this worker's part of the model.
        group: all workers.
        waits: records waiting for other workers.
        recorder: this worker's trace.
        progress: counts samples that were not applied.
    """

    def __init__(
        self, bound: Bound, group: Group, waits: Waits, recorder: Recorder, progress: Progress
    ) -> None:
        self._bound = bound
        self._group = group
        self._waits = waits
        self._progress = progress
        self._not_applied = NotApplied(recorder)
        self._buffers = [one for one in bound.model.buffers() if one.is_floating_point()]
        self._kept = [buffer.clone() for buffer in self._buffers]

    def regroup(self, group: Group) -> None:
        """Decide with the workers of another group from now on."""
        self._group = group

    def keep_buffers(self) -> None:
        """Take the buffers of the model as those before the next step."""
        if self._kept:
            torch._foreach_copy_(self._kept, self._buffers)

    def unscale(self, scale: LossScale) -> bool:
        """Divide the gradient by the loss scale; return whether it is finite on all workers."""
        found = overflows(self._bound.own_gradients()).to(self._group.device)
        if self._group.size > 1:
            self._waits.begin()
            self._group.sum_small(found)
            self._waits.end()
        self._bound.rescale(1 / scale.factor)
        scale.update(overflowed=bool(found))
        return not found

    def admits(self, loss: torch.Tensor, batch: ComputedBatch, weight: float) -> bool:
        """Whether to step; if not, no worker does, and the origin is in the trace.

        Args:
            loss: this worker's loss.
            batch: this worker's batch.
            weight: its weight, as for the gradient.
        """
        share, bound = batch.share, self._bound
        own = bound.take_refused()
        known = bound.take_finite()
        found = "" if known else not_finite_among(bound.own_gradients())
        samples = share.samples if bound.speaks else 0
        together = share.total
        if not bound.whole_gradient and bound.rescales:
            found, together = self._agree(found, samples)
        if not found and not own:
            self._keep_finite_buffers()
            return True
        where = {"epoch": share.epoch, "step": share.step, "sample": share.dealt}
        if own:
            self._note(str(self._group.names[self._group.rank]), own, samples, where)
            self._undo_buffers()
        if not found and bound.rescales:
            return True
        if found:
            named = self._origin(loss, batch, weight)
            if self._deciding.rank == 0:
                for rank, what in named.items() or {"unknown": found}.items():
                    self._note(str(rank), what, together, where)
                    together = 0
        self._progress.lost += samples
        self._undo_buffers()
        return False

    @property
    def _deciding(self) -> Group:
        """The workers that step together."""
        return self._bound.together or self._group

    def _agree(self, found: NotFinite, samples: int) -> tuple[NotFinite, int]:
        """What any part of the gradient has, and the samples that the whole is computed from."""
        if self._deciding.size == 1:
            return found, samples
        counts = [found == "NaN", found == "infinity", samples]
        everyone = torch.tensor(counts, dtype=torch.int64, device=self._group.device)
        self._sum(everyone)
        nan, infinity, together = everyone.tolist()
        return "NaN" if nan else "infinity" if infinity else "", together

    def _sum(self, counts: torch.Tensor) -> None:
        self._waits.begin()
        self._deciding.sum_small(counts)
        self._waits.end()

    def _keep_finite_buffers(self) -> None:
        """Keep buffers; restore them if a batch has changed them whose update is refused later."""
        if not self._bound.rescales and not_finite_among(self._buffers):
            self._undo_buffers()
        else:
            self.keep_buffers()

    def _note(self, worker: str, what: str, samples: int, where: dict[str, int]) -> None:
        self._not_applied.note(worker, what, samples, where)

    @torch.no_grad()
    def _undo_buffers(self) -> None:
        """Restore buffers: statistics of a batch that is not finite would stay in them."""
        if self._kept:
            torch._foreach_copy_(self._buffers, self._kept)

    def _origin(
        self, loss: torch.Tensor, batch: ComputedBatch, weight: float
    ) -> dict[int | str, NotFinite]:
        """By rank, what the gradients of workers have; empty if it does not happen again."""
        if self._deciding.size == 1:
            return {
                self._deciding.names[0]: not_finite(loss)
                or not_finite_among(self._bound.own_gradients())
            }
        named = self._gather(not_finite(loss) if weight and self._bound.speaks else "")
        if named or not self._bound.whole_gradient:
            return named
        again = self._bound.local_gradients(
            batch.inputs, batch.targets, weight, batch.share.computed
        )
        return self._gather(not_finite_among(again) if weight else "")

    def _gather(self, own: NotFinite) -> dict[int | str, NotFinite]:
        """What each worker has found, by rank, without those that found nothing."""
        group = self._deciding
        all_found = torch.zeros(group.size, dtype=torch.int64, device=group.device)
        all_found[group.rank] = _FOUND.index(own)
        self._sum(all_found)
        everyone = zip(group.names, all_found.tolist(), strict=True)
        return {rank: _FOUND[one] for rank, one in everyone if one}

    def settle(self) -> None:
        """Write the last refusals to the trace."""
        self._not_applied.settle()
