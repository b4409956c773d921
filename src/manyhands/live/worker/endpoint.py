"""Endpoint of a live worker: sends its protocol's messages to servers and peers."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from manyhands.parameters import as_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from manyhands.endpoint import Said
    from manyhands.live.member.peer_calls import PeerCalls
    from manyhands.live.member.progress import Progress
    from manyhands.trace import Phase, Recorder
    from manyhands.transport.caller import Caller


_PATIENCE = 1.0
"""Seconds between checks, while waiting for an answer, whether the other side is lost."""
_BETWEEN_NORMS = 1.0
"""Seconds between records of what codecs have not sent."""


class LiveEndpoint:
    """The endpoint of a live worker, on top of a `Caller`."""

    def __init__(
        self,
        name: str,
        seed: int,
        caller: Caller,
        peers: PeerCalls | None,
        recorder: Recorder,
        progress: Progress,
    ) -> None:
        self.name = name
        self.rng = random.Random(seed)  # noqa: S311 - for protocols, not for secrets
        self._caller = caller
        self._peers = peers
        self._recorder = recorder
        self._progress = progress
        self._recorded = time.monotonic()
        """When bytes were last added to the trace."""
        self.coding = 0.0
        """Seconds of encoding and decoding so far."""
        self.residual: Callable[[], float] = lambda: 0.0
        """The norm of what codecs have not sent; set by `run_free`."""
        self._residual_noted = -_BETWEEN_NORMS

    def enter(self, phase: Phase) -> None:
        """Count traffic to another phase from now on."""
        self._caller.phase = phase

    def reaches(self, name: str) -> bool:
        """Whether a member is not known to be lost."""
        return self._peers is None or self._peers.reaches(name)

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
        if self._peers is not None and not self._peers.begin(to):
            return
        begun = time.monotonic()
        self._caller.post(to, message, _memory(payload), _memory(into))
        self._recorder.span("send", begun, time.monotonic() - begun, self._progress.step)

    def note_coding(self, begun: float) -> None:
        """Record the time that encoding or decoding took, and now and then what was not sent."""
        now = time.monotonic()
        self.coding += now - begun
        self._recorder.span("encode", begun, now - begun, self._progress.step)
        if now - self._residual_noted >= _BETWEEN_NORMS:
            self._residual_noted = now
            self.note_residual("residual")

    def note_residual(self, name: str) -> None:
        """Record the norm of what codecs have not sent, if there is anything."""
        norm = self.residual()
        if norm:
            self._recorder.point(name, norm, samples=self._progress.samples)

    def _await(self, sender: str, timeout: float | None) -> Said:
        begun = time.monotonic()
        while True:
            if self._peers is not None:
                self._peers.check(sender)
            patience = _look_again(time.monotonic() - begun, timeout)
            try:
                answer = self._caller.receive(sender, patience)
            except TimeoutError:
                if timeout is not None and time.monotonic() - begun >= timeout:
                    raise
                continue
            if self._peers is not None:
                self._peers.end(sender)
            return answer

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
        if begun + spent - self._recorded >= 1.0:
            self._recorded = begun + spent
            self._caller.traffic.hand_to(self._recorder)
        return answer


def _look_again(waited: float, timeout: float | None) -> float:
    return _PATIENCE if timeout is None else min(_PATIENCE, timeout - waited)


def _memory(tensor: torch.Tensor | None) -> memoryview | None:
    return None if tensor is None else as_bytes(tensor).numpy().data
