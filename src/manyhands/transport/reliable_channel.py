"""Reliable channel: messages arrive exactly once and in order, though the connection may break.

ZeroMQ reconnects by itself, but messages in flight when the connection broke are lost. So messages
are numbered and kept until the other side has acknowledged them; without an acknowledgement all of
them are sent again. A message that is not urgent is sent together with the next one: a worker's
commit and its request for the next samples are one frame.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from manyhands.wire.leasing import Leasing, Word

if TYPE_CHECKING:
    from collections.abc import Callable

    from manyhands.transport.control import Line

_PATIENCE = 1.0
"""Seconds without an acknowledgement after which messages are sent again; doubled each time."""
_MOST_PATIENCE = 8.0
_RESUMED_PATIENCE = 0.25
"""The first patience of an end that was restored: the other side reconnects about then."""
_MOST = 32
"""The most messages in one `Word`, which must fit into a control message."""


class ChannelState(msgspec.Struct, frozen=True):
    """The state of one end of a reliable channel."""

    incarnation: int
    posted: int
    received: int
    kept: tuple[tuple[int, Leasing], ...]
    """Messages that are not acknowledged, with their numbers."""


class ReliableChannel:
    """One end of a reliable channel.

    Args:
        incarnation: incarnation of the worker's process; each has a channel of its own.
        send: sends a `Word`, which may be lost.
        clock: a source of seconds.
    """

    def __init__(
        self, incarnation: int, send: Callable[[Word], object], clock: Callable[[], float]
    ) -> None:
        self.incarnation = incarnation
        self._send = send
        self._clock = clock
        self._posted = 0
        self._sent = 0
        """Number of messages that were sent at least once."""
        self._received = 0
        self._kept: deque[tuple[int, Leasing]] = deque()
        """Messages that are not acknowledged, with their numbers."""
        self._since = 0.0
        self._patience = _PATIENCE

    def post(self, message: Leasing, *, later: bool = False) -> None:
        """Send a message, repeatedly if necessary; `later` together with the next one."""
        # The patience counts from the oldest message that is not acknowledged: a sender that never
        # stops must not put off its repetition.
        if not self._kept:
            self._since, self._patience = self._clock(), _PATIENCE
        self._kept.append((self._posted, message))
        self._posted += 1
        if not later or self._posted - self._sent >= _MOST:
            self.flush()

    def flush(self) -> None:
        """Send messages that were posted with `later`."""
        if self._sent < self._posted:
            self._send_from(self._sent)
            self._sent = self._posted

    def _send_from(self, number: int) -> None:
        kept = [entry for entry in self._kept if entry[0] >= number]
        for begin in range(0, len(kept), _MOST):
            part = kept[begin : begin + _MOST]
            messages = tuple(message for _, message in part)
            self._send(Word(self.incarnation, part[0][0], self._received, messages))

    def receive(self, word: Word) -> list[Leasing]:
        """Process a `Word` of the other side; return the messages in it that are new."""
        while self._kept and self._kept[0][0] < word.heard:
            self._kept.popleft()
            self._since, self._patience = self._clock(), _PATIENCE
        # A message before these was lost. They are received when all are sent again from there,
        # because the order is part of what they mean: a commit before the request for the next
        # samples.
        if word.number > self._received:
            return []
        fresh = list(word.messages[self._received - word.number :])
        self._received += len(fresh)
        if word.messages and not fresh:
            # The other side sent it again, so the acknowledgement was lost.
            self._send(Word(self.incarnation, self._posted, self._received))
        return fresh

    def check_timers(self) -> None:
        """Send messages again that were not acknowledged in time."""
        now = self._clock()
        if self._kept and now - self._since >= self._patience:
            self._since, self._patience = now, min(2 * self._patience, _MOST_PATIENCE)
            self._sent = self._posted
            self._send_from(0)

    def state(self) -> ChannelState:
        """The state, from which `restore` continues in another process."""
        kept = tuple(self._kept)
        return ChannelState(self.incarnation, self._posted, self._received, kept)

    def restore(self, state: ChannelState) -> None:
        """Continue from a state."""
        # Numbers go on where the predecessor was: the other side drops what it has under these
        # numbers, and acknowledges the rest.
        self._posted = self._sent = state.posted
        self._received = state.received
        self._kept = deque(state.kept)
        self.resume()

    def resume(self) -> None:
        """Send messages again soon: whether they were sent before is not known."""
        self._sent = self._posted
        self._since, self._patience = self._clock(), _RESUMED_PATIENCE


class ReliableLine:
    """A worker's reliable connection to the lease service.

    Args:
        line: connection to the coordinator.
        incarnation: incarnation number of the worker.
    """

    def __init__(self, line: Line, incarnation: int) -> None:
        self._line = line
        self._channel = ReliableChannel(incarnation, line.send, time.monotonic)

    def send(self, message: Leasing, *, later: bool = False) -> None:
        """Send a message; `later` together with the next one, or when waiting for an answer."""
        self._channel.post(message, later=later)

    def receive(self, timeout: float) -> list[Leasing]:
        """Messages that arrive within `timeout` seconds."""
        words = self._line.receive(0)
        if not words:
            # Only before it waits: a commit travels with the request that mostly follows it at
            # once.
            self._channel.flush()
            words = self._line.receive(timeout)
        messages = [
            message
            for word in words
            # The name is that of the worker; a message to its predecessor may still arrive on it.
            if isinstance(word, Word) and word.life == self._channel.incarnation
            for message in self._channel.receive(word)
        ]
        self._channel.check_timers()
        return messages
