"""Two who talk over a connection that may break: every word arrives once, and in order.

ZeroMQ connects again by itself, but what was under way when the connection broke is gone. So words
are numbered and kept until the other side has said that it heard them; silence is broken by saying
all of them again. A message that can wait for the next one travels with it: a worker's commit and
its request for the next samples are one.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from manyhands.wire.leasing import Word

if TYPE_CHECKING:
    from collections.abc import Callable

    from manyhands.transport.control import Line
    from manyhands.wire.leasing import Leasing

_PATIENCE = 1.0
"""Seconds without a sign that a word was heard; then it is said again. Next time, twice that."""
_MOST_PATIENCE = 8.0
_MOST = 32
"""Messages in one word: it has to fit into a control message."""


class ReliableChannel:
    """One side of it.

    Args:
        incarnation: that of the worker's process; a new process begins a new conversation.
        send: sends a word, or loses it.
        clock: seconds.
    """

    def __init__(
        self, incarnation: int, send: Callable[[Word], object], clock: Callable[[], float]
    ) -> None:
        self.incarnation = incarnation
        self._send = send
        self._clock = clock
        self._said = 0
        self._sent = 0
        """How many of them were sent at least once."""
        self._heard = 0
        self._kept: deque[tuple[int, Leasing]] = deque()
        """What was said and may not have been heard."""
        self._since = 0.0
        self._patience = _PATIENCE

    def say(self, message: Leasing, *, later: bool = False) -> None:
        """Send it, again and again if need be; `later` with the next one, or by `flush`."""
        if not self._kept:
            self._since, self._patience = self._clock(), _PATIENCE
        self._kept.append((self._said, message))
        self._said += 1
        if not later or self._said - self._sent >= _MOST:
            self.flush()

    def flush(self) -> None:
        """Send what was to be sent later."""
        if self._sent < self._said:
            self._send_from(self._sent)
            self._sent = self._said

    def _send_from(self, number: int) -> None:
        kept = [entry for entry in self._kept if entry[0] >= number]
        for begin in range(0, len(kept), _MOST):
            part = kept[begin : begin + _MOST]
            messages = tuple(message for _, message in part)
            self._send(Word(self.incarnation, part[0][0], self._heard, messages))

    def hear(self, word: Word) -> list[Leasing]:
        """The messages that came and are the next ones."""
        while self._kept and self._kept[0][0] < word.heard:
            self._kept.popleft()
            self._since, self._patience = self._clock(), _PATIENCE
        if word.number > self._heard:
            return []
        fresh = list(word.messages[self._heard - word.number :])
        self._heard += len(fresh)
        if word.messages and not fresh:
            # It was said again, so the other side does not know.
            self._send(Word(self.incarnation, self._said, self._heard))
        return fresh

    def look_at_clock(self) -> None:
        """Say again what has had no answer for long."""
        now = self._clock()
        if self._kept and now - self._since >= self._patience:
            self._since, self._patience = now, min(2 * self._patience, _MOST_PATIENCE)
            self._sent = self._said
            self._send_from(0)


class ReliableLine:
    """A worker's line to the desk where samples are leased.

    Args:
        line: to the coordinator.
        incarnation: which incarnation of the worker this is; a successor has a greater number.
    """

    def __init__(self, line: Line, incarnation: int) -> None:
        self._line = line
        self._talk = ReliableChannel(incarnation, line.send, time.monotonic)

    def send(self, message: Leasing, *, later: bool = False) -> None:
        """See that it arrives; `later` with the next one, or when an answer is waited for."""
        self._talk.say(message, later=later)

    def receive(self, timeout: float) -> list[Leasing]:
        """What came, or comes within `timeout` seconds."""
        words = self._line.receive(0)
        if not words:
            self._talk.flush()
            words = self._line.receive(timeout)
        messages = [
            message
            for word in words
            if isinstance(word, Word) and word.life == self._talk.incarnation
            for message in self._talk.hear(word)
        ]
        self._talk.look_at_clock()
        return messages
