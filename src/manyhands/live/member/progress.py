"""Progress of a worker, written by its main thread and read by its heartbeat thread."""

from __future__ import annotations

import sys
import sysconfig
import threading
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_OURS = str(Path(__file__).parents[2])
# Where "lib" and "lib64" are two folders, torch is in the second.
_OTHERS = (*(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")), "<frozen")


class Progress:
    """The step, phase and losses of a worker.

    One thread writes plain attributes, another reads them; a read may mix two consecutive steps,
    which is accurate enough for a heartbeat.
    """

    def __init__(self) -> None:
        self.marks = 0
        """A number that grows whenever the main thread gets on: another phase, another batch."""
        self.step = 0
        self.samples = 0
        self.lost = 0
        """Samples whose update was not applied, if this worker counts its own samples."""
        self._phase = "start"
        self.accounts = False
        """Whether this worker counts its own samples; otherwise the lease service counts them."""
        self.losses: list[tuple[torch.Tensor, int]] = []
        self._main = threading.main_thread().ident

    @property
    def phase(self) -> str:
        """What the main thread does; see `manyhands.leasing.membership`."""
        return self._phase

    @phase.setter
    def phase(self, phase: str) -> None:
        self._phase = phase
        self.marks += 1

    def mark(self) -> None:
        """Note that the main thread has got on within its phase: a long one has many parts."""
        self.marks += 1

    def drain_losses(self) -> tuple[float, int] | None:
        """The mean loss since the last call and the samples behind it, if there were any."""
        # The list object is kept: the other thread may be about to append to it.
        losses = [*self.losses]
        del self.losses[: len(losses)]
        samples = sum(count for _, count in losses)
        if not samples:
            return None
        return sum(float(loss) * count for loss, count in losses) / samples, samples

    def line(self) -> str:
        """Where the main thread is: the innermost line of the user, and that of a library."""
        frame = sys._current_frames().get(self._main or 0)
        inner = user = None
        while frame is not None and user is None:
            path = frame.f_code.co_filename
            place = f"{_short(path)}:{frame.f_lineno} in {frame.f_code.co_name}"
            if inner is None and not path.startswith(_OTHERS):
                inner = place
            if inner is None and path.startswith(_OURS):
                inner = place
            if not path.startswith((*_OTHERS, _OURS)):
                user = place
            frame = frame.f_back
        if user is None or user == inner:
            return inner or "an unknown line"
        return f"{user} ({inner})" if inner else user


def _short(path: str) -> str:
    return path.removeprefix(str(Path(_OURS).parent) + "/")
