"""Endpoint of a live worker: sends its protocol's messages to servers and peers."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from manyhands.endpoint import MembershipChanged

if TYPE_CHECKING:
    from collections.abc import Container

    import torch

    from manyhands.endpoint import Said
    from manyhands.live.member.progress import Progress
    from manyhands.trace import Recorder
    from manyhands.transport.caller import Caller


_PATIENCE = 1.0
"""Seconds between checks, while waiting for an answer, whether the other side is lost."""


class LiveEndpoint:
    """The endpoint of a live worker, on top of a `Caller`."""

    def __init__(
        self,
        name: str,
        seed: int,
        caller: Caller,
        gone: Container[str],
        recorder: Recorder,
        progress: Progress,
    ) -> None:
        self.name = name
        self.rng = random.Random(seed)  # noqa: S311 - for protocols, not for secrets
        self._caller = caller
        self._gone = gone
        self._recorder = recorder
        self._progress = progress

    def reaches(self, name: str) -> bool:
        """Whether a member is not known to be lost."""
        return name not in self._gone

    def clock(self) -> float:
        """Seconds of the monotonic clock."""
        return time.monotonic()

    def post(
        self,
        to: str,
        message: Said,
        payload: torch.Tensor | None = None,
        into: torch.Tensor | None = None,
    ) -> None:
        """Send without blocking."""
        begun = time.monotonic()
        self._caller.post(to, message, _memory(payload), _memory(into))
        self._recorder.span("send", begun, time.monotonic() - begun, self._progress.step)

    def _await(self, sender: str, timeout: float | None) -> Said:
        begun = time.monotonic()
        while True:
            if sender in self._gone:
                self._caller.give_up(sender)
                raise MembershipChanged(f"{sender} is lost")
            patience = _look_again(time.monotonic() - begun, timeout)
            try:
                return self._caller.receive(sender, patience)
            except TimeoutError:
                if timeout is not None and time.monotonic() - begun >= timeout:
                    raise

    async def receive(self, sender: str, timeout: float | None = None) -> Said:
        """Block until an answer arrives."""
        begun = time.monotonic()
        before, self._progress.phase = self._progress.phase, "receive"
        answer = self._await(sender, timeout)
        self._progress.phase = before
        # The time that the call spent in the server counts as waiting, the rest as transfer.
        spent, step = time.monotonic() - begun, self._progress.step
        waited = min(self._caller.held, spent)
        self._recorder.span("wait", begun, waited, step)
        self._recorder.span("receive", begun + waited, spent - waited, step)
        return answer


def _look_again(waited: float, timeout: float | None) -> float:
    return _PATIENCE if timeout is None else min(_PATIENCE, timeout - waited)


def _memory(tensor: torch.Tensor | None) -> memoryview | None:
    return None if tensor is None else tensor.numpy().data
