"""Watch over the agent of the first host, which shows messages and replaces what is lost.

An agent that is stopped, by Ctrl-Z for example, does neither. Workers and servers go on meanwhile,
and so does the run when the agent continues; until then the coordinator writes to its terminal.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from manyhands.wire import Beat

if TYPE_CHECKING:
    from collections.abc import Callable

    from manyhands.trace import Recorder
    from manyhands.wire import Control

SILENCE = 8.0
"""Seconds without a heartbeat of the agent until a message says so."""
START_SILENCE = 25.0
"""The same before the run has begun: the agent may wait for processes that start."""
REPEAT = 20.0
"""Seconds until the message is repeated."""


class AgentWatch:
    """What was heard of the agent, and said about it.

    Args:
        terminal: shows a message to the user without the agent.
        recorder: the coordinator's trace.
        agent: the agent's process id.
    """

    def __init__(
        self, terminal: Callable[[str], object], recorder: Recorder, agent: int | None = None
    ) -> None:
        self._terminal = terminal
        self._recorder = recorder
        self._agent = os.getppid() if agent is None else agent
        self._heard: float | None = None
        """When its last message arrived; None until it has sent a heartbeat."""
        self._said: float | None = None
        """When the last message about it was shown; None while it is well."""

    def hear(self, now: float, message: Control) -> None:
        """Note a message of the agent."""
        if self._heard is not None or isinstance(message, Beat):
            self._heard = now

    def forget(self) -> None:
        """Continue for a predecessor: the agent is waited for from now on."""
        self._heard = None

    def look(self, now: float, *, begun: bool) -> None:
        """Say now and then that the agent does not answer, and once that it does again."""
        silent = 0.0 if self._heard is None else now - self._heard
        if silent <= (SILENCE if begun else START_SILENCE):
            if self._said is not None:
                self._recorder.event("back", {"words": "the agent is back"})
                self._terminal("manyhands: the agent of the first host is back")
            self._said = None
        elif self._said is None or now - self._said >= REPEAT:
            self._said = now
            words = (
                f"the agent of the first host (pid {self._agent}) has not answered for "
                f"{silent:.0f} s{_state(self._agent)}; the workers train on, but what is lost is "
                f"not replaced and the run does not end until it continues: fg, or kill -CONT "
                f"{self._agent}"
            )
            self._recorder.event("suspect", {"words": words})
            self._terminal(f"manyhands: {words}")

    def say_instead(self, words: str) -> None:
        """Show a message that the agent does not show at present."""
        if self._said is not None:
            self._terminal(f"manyhands: {words}")


def _state(pid: int) -> str:
    """Whether a process is stopped, in words; empty if it is not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    state = status.rpartition(")")[2].split()[:1]
    return ": it is stopped (SIGSTOP or Ctrl-Z)" if state == ["T"] else ""
