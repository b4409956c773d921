"""Virtual time: protocols' coroutines as SimPy processes that can be paused or dropped.

A coroutine awaits SimPy's events only. A generator between it and SimPy checks, at every event,
whether the process is alive and whether it is paused. A process that died is never resumed: its
coroutine is kept, unfinished, until the run is over, because freeing it would run its `finally`
blocks, and after a `kill -9` none runs.
"""

from __future__ import annotations

import contextlib
import types
from typing import TYPE_CHECKING, Any

from simpy import Environment, Event
from simpy.core import EmptySchedule

from manyhands.failure import RunFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

    from manyhands.virtual.simulator.member import VirtualProcess

    Work = Coroutine[Any, Any, None]


@types.coroutine
def happens(event: Event) -> Generator[Event, Any, Any]:
    """Wait for an event; return its value."""
    return (yield event)


class Kernel:
    """The clock of one run, and its running processes."""

    def __init__(self) -> None:
        self.env = Environment(initial_time=0.0)
        self._finished = self.env.event()
        self._error: Exception | None = None
        self._running: dict[VirtualProcess, Work] = {}
        self._dropped: list[Work] = []

    @property
    def now(self) -> float:
        """Virtual seconds since the run began."""
        return self.env.now

    @property
    def running(self) -> tuple[VirtualProcess, ...]:
        """The processes that have neither ended nor been dropped."""
        return tuple(self._running)

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        """Call `action` after some virtual seconds."""

        def act(_: Event) -> None:
            action()

        self.env.timeout(seconds).callbacks.append(act)

    def start(self, member: VirtualProcess, work: Work, ended: Callable[[], object]) -> None:
        """Run a process; `ended` is called when it returns, not when it is dropped."""
        self._running[member] = work
        self.env.process(self._steps(member, work, ended))

    def drop(self, member: VirtualProcess) -> None:
        """Never resume a process again."""
        work = self._running.pop(member, None)
        if work is not None:
            self._dropped.append(work)

    def _steps(
        self, member: VirtualProcess, work: Work, ended: Callable[[], object]
    ) -> Generator[Event, Any, None]:
        life, value = member.life, None
        while True:
            try:
                event = work.send(value)
            except StopIteration:
                break
            except Exception as error:  # noqa: BLE001 - whatever it is, the run fails with it
                self.fail(error)
                return
            value = yield event
            while member.is_in(life) and member.resumes > self.env.now:
                yield self.env.timeout(member.resumes - self.env.now)
            if not member.is_in(life):
                return
        del self._running[member]
        ended()

    def fail(self, error: Exception) -> None:
        """End the run with an error; only the first one is kept."""
        if self._error is None:
            self._error = error
            self.finish()

    def finish(self) -> None:
        """End the run at this moment."""
        if not self._finished.triggered:
            self._finished.succeed()

    def run(self) -> None:
        """Process events until the run is finished.

        Raises:
            RunFailed: a deadlock: no events are left, and the run is not finished.
        """
        try:
            while not self._finished.processed:
                self.env.step()
        except EmptySchedule:
            raise RunFailed(self._standstill()) from None
        finally:
            self._let_go()
        if self._error is not None:
            raise self._error

    def _standstill(self) -> str:
        names = [member.name for member in self._running]
        shown = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
        return (
            f"deadlock after {self.now:g} s: no events are left, and "
            f"{shown or 'no process'} still waiting"
        )

    def _let_go(self) -> None:
        """Close unfinished coroutines; what they do then has no effect."""
        for member in self._running:
            member.end(self.now)
        unfinished = [*self._dropped, *self._running.values()]
        self._dropped.clear()
        self._running.clear()
        for work in unfinished:
            with contextlib.suppress(Exception):
                work.close()
