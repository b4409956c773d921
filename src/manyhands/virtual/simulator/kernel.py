"""Virtual time: timed actions, and protocols' coroutines that can be paused or dropped.

Actions happen in order of time, and in the order in which they were scheduled if their times are
equal; only the start of a process precedes other actions of its moment. So a run is repeatable.

A coroutine awaits events of the kernel only. At every event the kernel checks whether its process
is alive and whether it is paused. A process that died is never resumed: its coroutine is kept,
unfinished, until the run is over, because freeing it would run its `finally` blocks, and after a
`kill -9` none runs.
"""

from __future__ import annotations

import contextlib
import types
from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, NoReturn

from manyhands.failure import RunFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

    from manyhands.virtual.simulator.member import VirtualProcess

    Work = Coroutine[Any, Any, None]
    Action = Callable[[], object]


class _Finished(Exception):  # noqa: N818 - it is no error
    """The run is finished: no further action is executed."""


class VirtualEvent:
    """Something that happens once; coroutines wait for it.

    Args:
        kernel: the clock.
    """

    __slots__ = ("_kernel", "_triggered", "actions", "has_happened")

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._triggered = False
        self.has_happened = False
        self.actions: list[Action] = []
        """What is executed when it happens."""

    def succeed(self) -> None:
        """Let it happen now, after the actions that were scheduled for now before."""
        if self._triggered:
            raise RuntimeError("the event has been triggered already")
        self._triggered = True
        self._kernel.after(0.0, self.happen)

    def happen(self) -> None:
        """Execute what waits for it. Called by the kernel."""
        self._triggered = self.has_happened = True
        for action in self.actions:
            action()


@types.coroutine
def happens(event: VirtualEvent) -> Generator[VirtualEvent, None, None]:
    """Wait for an event."""
    yield event


@types.coroutine
def passes(seconds: float) -> Generator[float, None, None]:
    """Wait for some virtual seconds."""
    yield float(seconds)


class _Running:
    """The coroutine of one incarnation of a process."""

    __slots__ = ("_ended", "_kernel", "_life", "_member", "_work")

    def __init__(self, kernel: Kernel, member: VirtualProcess, work: Work, ended: Action) -> None:
        self._kernel = kernel
        self._member = member
        self._life = member.life
        self._work = work
        self._ended = ended

    def resume(self) -> None:
        """Continue, unless the process has died; when its pause is over, if it is paused."""
        member, kernel = self._member, self._kernel
        # An event may happen after the process has died, or when its successor runs: the coroutine
        # of the former incarnation must not go on.
        if not member.alive or member.life != self._life:
            return
        if member.resumes > kernel.now:
            kernel.after(member.resumes - kernel.now, self.resume)
        else:
            self.advance()

    def advance(self) -> None:
        """Execute the coroutine up to the next event that it awaits."""
        try:
            event = self._work.send(None)
        except StopIteration:
            self._kernel.has_ended(self._member)
            self._ended()
        except Exception as error:  # noqa: BLE001 - whatever it is, the run fails with it
            self._kernel.fail(error)
        else:
            if type(event) is float:
                self._kernel.after(event, self.resume)
            elif event.has_happened:
                self.resume()
            else:
                event.actions.append(self.resume)


class Kernel:
    """The clock of one run, and its running processes."""

    def __init__(self) -> None:
        self.now = 0.0
        """Virtual seconds since the run began."""
        self._times: list[float] = []
        """A heap of the times at which something happens, each once."""
        self._actions: dict[float, list[Action]] = {}
        """By time, the actions in the order in which they were scheduled."""
        self._starts: deque[Action] = deque()
        """Starts of processes, which precede all other actions of this moment."""
        self._finishing = False
        self._error: Exception | None = None
        self._running: dict[VirtualProcess, Work] = {}
        self._dropped: list[Work] = []

    @property
    def running(self) -> tuple[VirtualProcess, ...]:
        """The processes that have neither ended nor been dropped."""
        return tuple(self._running)

    def after(self, seconds: float, action: Action) -> None:
        """Call `action` after some virtual seconds."""
        if seconds < 0:
            raise ValueError(f"time does not run backwards: got {seconds} s")
        time = self.now + seconds
        actions = self._actions.get(time)
        if actions is None:
            self._actions[time] = [action]
            heappush(self._times, time)
        else:
            actions.append(action)

    def event(self) -> VirtualEvent:
        """An event that happens when its `succeed` is called."""
        return VirtualEvent(self)

    def timeout(self, seconds: float) -> VirtualEvent:
        """An event that happens after some virtual seconds."""
        event = VirtualEvent(self)
        self.after(seconds, event.happen)
        return event

    def first_of(self, *events: VirtualEvent) -> VirtualEvent:
        """An event that happens when the first of several has happened."""
        first = VirtualEvent(self)
        noted = False

        def note() -> None:
            nonlocal noted
            # Several of them may happen at one moment, and an event happens once.
            if not noted:
                noted = True
                first.succeed()

        for event in events:
            event.actions.append(note)
        return first

    def start(self, member: VirtualProcess, work: Work, ended: Action) -> None:
        """Run a process; `ended` is called when it returns, not when it is dropped."""
        self._running[member] = work
        self._starts.append(_Running(self, member, work, ended).advance)

    def has_ended(self, member: VirtualProcess) -> None:
        """Note that the coroutine of a process has returned."""
        del self._running[member]

    def drop(self, member: VirtualProcess) -> None:
        """Never resume a process again."""
        work = self._running.pop(member, None)
        if work is not None:
            self._dropped.append(work)

    def fail(self, error: Exception) -> None:
        """End the run with an error; only the first one is kept."""
        if self._error is None:
            self._error = error
            self.finish()

    def finish(self) -> None:
        """End the run at this moment."""
        if not self._finishing:
            self._finishing = True
            self.after(0.0, self._finish)

    def _finish(self) -> NoReturn:
        raise _Finished

    def run(self) -> None:
        """Process events until the run is finished.

        Raises:
            RunFailed: a deadlock: no events are left, and the run is not finished.
        """
        times, scheduled, starts = self._times, self._actions, self._starts
        try:
            self._start_processes()
            while times:
                self.now = now = heappop(times)
                # Actions may add further ones to this moment.
                for action in scheduled[now]:
                    action()
                    if starts:
                        self._start_processes()
                del scheduled[now]
            raise RunFailed(self._standstill())
        except _Finished:
            pass
        finally:
            self._let_go()
        if self._error is not None:
            raise self._error

    def _start_processes(self) -> None:
        while self._starts:
            self._starts.popleft()()

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
            # Before the coroutines are closed: what their `finally` blocks do is done by a dead
            # process and has no effect.
            member.end(self.now)
        unfinished = [*self._dropped, *self._running.values()]
        self._dropped.clear()
        self._running.clear()
        for work in unfinished:
            with contextlib.suppress(Exception):
                work.close()
