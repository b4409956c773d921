"""Faults on purpose, live: each agent carries out those of its own host.

The agent knows the current process of a name; a script from outside would find process ids by their
names, and hit the wrong process after a restart (`docs/decisions/0069-faults-on-purpose.md`).

Times count from the first samples that the run has trained on, as the coordinator reports them to
all agents twice a second. What is done is recorded in the agent's trace: the event `fault` when a
fault begins, `fault over` when it ends. Nothing outlives the run: at its end stopped processes are
continued, links restored and files removed.
"""

from __future__ import annotations

import contextlib
import signal
import time
from typing import TYPE_CHECKING

from manyhands.faults import CoordinatorCrash, Crash, CutHost, Fault, FullDisk, Pause
from manyhands.live.agent.faults.full_disk import fill_disk
from manyhands.live.hosts.host_links import read_links

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from pathlib import Path

    from manyhands.live.processes.supervision import Process
    from manyhands.live.request import Request
    from manyhands.trace import Recorder
    from manyhands.wire import Status

    Find = Callable[[str], Process | None]
    Record = Callable[[str, dict[str, str]], object]
    Undo = Callable[[], str]
    """Ends a fault, and returns what was done in words."""


class FaultInjection:
    """Carries out the faults of one host.

    Args:
        faults: the faults of the run, with random ones drawn.
        names: the processes of this host, by the names that they keep.
        find: returns the current process of a name; None while there is none.
        record: records an event.
        say: shows a message.
        folder: the run's folder; None on a joined host, which neither fills the disk nor cuts
            links.
        clock: a source of seconds.
    """

    def __init__(
        self,
        faults: Iterable[Fault],
        names: Collection[str],
        find: Find,
        record: Record,
        say: Callable[[str], object],
        folder: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._find = find
        self._record = record
        self._say = say
        self._folder = folder
        self._clock = clock
        self._links = read_links()
        own = [fault for fault in faults if self._is_own(fault, names)]
        self._due = sorted(own, key=_begin, reverse=True)
        """The faults that have not begun, the next one last."""
        self._lasting: list[tuple[float, Fault, Undo]] = []
        """Faults that have begun and not ended: when they end, and how."""
        self._begun: float | None = None
        self.stays_away: set[str] = set()
        """Workers that were killed and are not to be restarted."""

    @classmethod
    def on_first_host(
        cls, request: Request, find: Find, recorder: Recorder, say: Callable[[str], object]
    ) -> FaultInjection:
        """The faults of the host on which a run was started."""

        def record(what: str, detail: dict[str, str]) -> None:
            recorder.event(what, detail)
            recorder.drain()

        faults, names = request.drawn_faults(), request.names_here()
        return cls(faults, names, find, record, say, request.folder)

    def _is_own(self, fault: Fault, names: Collection[str]) -> bool:
        if isinstance(fault, CutHost | FullDisk):
            return self._folder is not None
        return any(name in names for name in _names(fault))

    def follow(self, status: Status) -> None:
        """Begin to count when the run has trained on its first samples."""
        if self._begun is None and status.samples > 0:
            self._begun = self._clock()

    def look(self) -> None:
        """Begin and end the faults that are due."""
        if self._begun is None:
            return
        now = self._clock() - self._begun
        for ending in [one for one in self._lasting if one[0] <= now]:
            self._lasting.remove(ending)
            self._finish(*ending[1:])
        while self._due and _begin(self._due[-1]) <= now:
            self._start(self._due.pop(), now)

    def end(self) -> None:
        """End all faults that have not ended: the run is over."""
        self._due.clear()
        while self._lasting:
            _, fault, undo = self._lasting.pop()
            with contextlib.suppress(OSError):  # its network may be gone already
                self._finish(fault, undo)

    def _start(self, fault: Fault, now: float) -> None:
        when = f"at {now:.1f} s"
        try:
            undo = self._carry_out(fault, when)
        except OSError as error:
            self._note("fault failed", fault, f"{fault.words} {when}: not possible: {error}")
            return
        if undo is None:
            names = ", ".join(name.replace("-", " ") for name in _names(fault))
            self._note("fault failed", fault, f"{names} was not running {when}")
            return
        self._note("fault", fault, f"{fault.words} {when}")
        seconds = getattr(fault, "seconds", None)
        if not isinstance(fault, Crash | CoordinatorCrash):
            self._lasting.append((float("inf") if seconds is None else now + seconds, fault, undo))

    def _carry_out(self, fault: Fault, when: str) -> Undo | None:
        """Begin a fault; return how to end it, or None if there was no such process."""
        match fault:
            case CutHost(host=host, way=way):
                link = self._links[host]
                link.cut(way)

                def restored() -> str:
                    link.restore()
                    return f"the link of host {host} is restored"

                return restored
            case FullDisk() if self._folder is not None:
                filler = fill_disk(self._folder)

                def removed() -> str:
                    filler.unlink(missing_ok=True)
                    return "the disk has space again"

                return removed
        (name,) = _names(fault)
        process = self._find(name)
        if process is None or process.poll() is not None:
            return None
        if isinstance(fault, Pause):
            process.signal(signal.SIGSTOP)
            return lambda: _continued(process)
        if isinstance(fault, Crash) and fault.restart is None:
            self.stays_away.add(name)
        process.eject(f"killed on purpose (--faults) {when}")
        return lambda: ""

    def _finish(self, fault: Fault, undo: Undo) -> None:
        since = "" if self._begun is None else f" at {self._clock() - self._begun:.1f} s"
        self._note("fault over", fault, f"{undo()}{since}")

    def _note(self, what: str, fault: Fault, words: str) -> None:
        self._record(what, {"what": str(fault), "words": words})
        self._say(f"{'fault' if what == 'fault over' else what}: {words}")


def _names(fault: Fault) -> tuple[str, ...]:
    """The names of the processes that a fault hits."""
    return ("coordinator",) if isinstance(fault, CoordinatorCrash) else fault.members()


def _begin(fault: Fault) -> float:
    at: float = getattr(fault, "at", 0.0)
    return at


def _continued(process: Process) -> str:
    words = process.name.replace("-", " ")
    if process.poll() is not None:
        return f"{words} had ended before it could continue"
    process.signal(signal.SIGCONT)
    return f"{words} continues"
