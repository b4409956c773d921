"""Two who talk over a connection that may break: every word arrives once, and in order.

ZeroMQ connects again by itself, but what was under way when the connection broke is gone. So words
are numbered and kept until the other side has said that it heard them; silence is broken by saying
all of them again.
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


class Conversation:
    """One side of it.

    Args:
        life: that of the worker's process; a new process begins a new conversation.
        send: sends a word, or loses it.
        clock: seconds.
    """

    def __init__(
        self, life: int, send: Callable[[Word], object], clock: Callable[[], float]
    ) -> None:
        self.life = life
        self._send = send
        self._clock = clock
        self._said = 0
        self._heard = 0
        self._kept: deque[tuple[int, Leasing]] = deque()
        """What was said and may not have been heard."""
        self._since = 0.0
        self._patience = _PATIENCE

    def say(self, message: Leasing) -> None:
        """Send it, again and again if need be."""
        if not self._kept:
            self._since, self._patience = self._clock(), _PATIENCE
        self._kept.append((self._said, message))
        self._said += 1
        self._send(Word(self.life, self._said - 1, self._heard, message))

    def hear(self, word: Word) -> Leasing | None:
        """The message that came, if it is the next one."""
        while self._kept and self._kept[0][0] < word.heard:
            self._kept.popleft()
            self._since, self._patience = self._clock(), _PATIENCE
        if word.message is None or word.number > self._heard:
            return None
        if word.number < self._heard:
            # It was said again, so the other side does not know.
            self._send(Word(self.life, self._said, self._heard, None))
            return None
        self._heard += 1
        return word.message

    def look_at_clock(self) -> None:
        """Say again what has had no answer for long."""
        now = self._clock()
        if self._kept and now - self._since >= self._patience:
            self._since, self._patience = now, min(2 * self._patience, _MOST_PATIENCE)
            for number, message in self._kept:
                self._send(Word(self.life, number, self._heard, message))


class SureLine:
    """A worker's line to the desk where samples are leased.

    Args:
        line: to the coordinator.
        life: which incarnation of the worker this is; a successor has a greater number.
    """

    def __init__(self, line: Line, life: int) -> None:
        self._line = line
        self._talk = Conversation(life, line.send, time.monotonic)

    def send(self, message: Leasing) -> None:
        """See that it arrives."""
        self._talk.say(message)

    def receive(self, timeout: float) -> list[Leasing]:
        """What came, or comes within `timeout` seconds."""
        words = [word for word in self._line.receive(timeout) if isinstance(word, Word)]
        messages = [self._talk.hear(word) for word in words if word.life == self._talk.life]
        self._talk.look_at_clock()
        return [message for message in messages if message is not None]
