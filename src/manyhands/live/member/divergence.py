"""Detection of NaN and infinity: in training losses, validation losses and the final parameters.

A loss that is not a finite number means that training has diverged. The worker that sees one first
checks its parameters: if they are still finite, its own batch produced the value; if not, the value
came with the parameters, from another worker or from an earlier step. The first kind is the cause
of the second, and is what the run's failure names.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from manyhands.codecs.kernels.finite import not_finite
from manyhands.failure import REMEDY, Diverged, Poisoned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from manyhands.job import Job
    from manyhands.trace import Recorder


class Divergence:
    """Checks the losses and parameters of one worker.

    Args:
        job: `stop_on_nan` decides whether the run ends.
        rank: the worker's rank.
        recorder: the worker's trace; the first value that is not finite is recorded there.
        parameters: returns the worker's parameters.
    """

    def __init__(
        self,
        job: Job,
        rank: int,
        recorder: Recorder,
        parameters: Callable[[], Iterable[torch.Tensor]],
    ) -> None:
        self._stops = job.stop_on_nan
        self._rank = rank
        self._recorder = recorder
        self._parameters = parameters
        self._late: tuple[torch.Tensor, int] | None = None
        self._found = False
        self._last = ""
        """Where the last loss was, if it was not finite."""

    def training(self, loss: torch.Tensor, sample: int) -> None:
        """Check the loss of a batch that begins at this sample of the run, before the step.

        A loss on an accelerator is checked one batch later, so that the worker does not wait for
        the device.
        """
        if self._found:
            return
        checked: tuple[torch.Tensor, int] | None = (loss, sample)
        if loss.device.type != "cpu":
            checked, self._late = self._late, (loss, sample)
        if checked is None:
            return
        value = float(checked[0])
        self._last = ""
        if math.isfinite(value):
            return
        what = f"the training loss became {name(value)} at sample {checked[1]:,} on worker"
        if self._is_finite():
            self._last = f"{what} {self._rank}"
            if self._stops:
                self._report(self._last, own=True)
        else:
            before = "whose parameters were not finite before that step"
            self._report(f"{what} {self._rank}, {before}", own=False)

    def validation(self, values: Mapping[str, float], sample: int) -> None:
        """Check the loss of an evaluation after this many samples."""
        value = values.get("loss", 0.0)
        if not self._found and not math.isfinite(value):
            words = f"the validation loss became {name(value)} after {sample:,} samples"
            self._report(words, own=True)

    def finally_(self) -> None:
        """Check the final parameters of the run."""
        if not self._found and not self._is_finite():
            words = f"the final parameters of worker {self._rank} contain NaN or infinity"
            self._report(words, own=False)
        self.note_last()

    def note_last(self) -> None:
        """Note at the end that the last loss was not finite, though the parameters are."""
        if self._last and not self._found:
            self._recorder.event("no loss", {"words": self._last})
            self._last = ""

    @torch.no_grad()
    def _is_finite(self) -> bool:
        for parameter in self._parameters():
            local = getattr(parameter, "to_local", None)
            here = parameter.detach() if local is None else local()
            if not_finite(here):
                return False
        return True

    def _report(self, words: str, *, own: bool) -> None:
        self._found = True
        self._recorder.event("diverged", {"words": words, "own": "yes" if own else "no"})
        if self._stops:
            raise (Diverged if own else Poisoned)(f"{words}; {REMEDY}")


def name(value: float) -> str:
    """The name of a value that is not finite."""
    return "NaN" if math.isnan(value) else "infinite"
