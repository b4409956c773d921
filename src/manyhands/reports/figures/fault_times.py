"""Faults of a run that were made on purpose: what happened to which process, and when it was back.

The agents of a live run and the simulator record the event `fault`, with the fault as text. When a
process that was killed works again is read from the trace of its next incarnation.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from manyhands.faults import CoordinatorCrash, Crash, Fault, Faults
from manyhands.notation import NotationError
from manyhands.reports.figures.speed import started, training_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable

    from manyhands.trace import ProcessTrace, Trace

_LISTED: Final = 4
"""The most faults that are listed one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultTime:
    """A fault that was made on purpose."""

    fault: Fault
    at: float
    """When it began, in seconds since training began."""
    over: float | None = None
    """When it ended, if it did in the run."""
    back: float | None = None
    """Seconds until the process that was killed worked again; None if it did not."""

    @property
    def words(self) -> str:
        """What happened and when.

        >>> from manyhands.faults import Crash
        >>> FaultTime(fault=Crash(2, at=20.0), at=20.04, back=1.31).words
        'worker 2 killed at 20.0 s, back after 1.3 s'
        """
        if isinstance(self.fault, Crash | CoordinatorCrash):
            end = "not back" if self.back is None else f"back after {self.back:.1f} s"
            return f"{_past(self.fault)} at {self.at:.1f} s, {end}"
        if self.over is not None:
            return f"{_past(self.fault)} from {self.at:.1f} s to {self.over:.1f} s"
        return f"{_past(self.fault)} at {self.at:.1f} s"


def fault_times(trace: Trace) -> tuple[FaultTime, ...]:
    """The faults of a run, in order of time."""
    begin = training_seconds(trace)[0]
    found = []
    over = {
        (event.detail.get("what"), event.at)
        for process in trace.processes
        for event in process.events
        if event.what == "fault over"
    }
    for process in trace.processes:
        for event in process.events:
            fault = _read(event.detail.get("what", "")) if event.what == "fault" else None
            if fault is None:
                continue
            text = event.detail["what"]
            ends = (at - begin for what, at in over if what == text and at >= event.at)
            end = min(ends, default=_planned_end(fault, event.at - begin, trace))
            crash = isinstance(fault, Crash | CoordinatorCrash)
            back = _back(trace, fault, event.at) if crash else None
            found.append(FaultTime(fault=fault, at=event.at - begin, over=end, back=back))
    return tuple(sorted(found, key=lambda one: one.at))


def faults_in_words(found: Iterable[FaultTime]) -> str:
    """All faults: one by one, or if there are many their numbers by kind."""
    faults = tuple(found)
    if len(faults) <= _LISTED:
        return "; ".join(one.words for one in faults)
    kinds = Counter(_kind(one.fault) for one in faults)
    told = ", ".join(f"{kind} {count} times" for kind, count in sorted(kinds.items()))
    backs = [one.back for one in faults if one.back is not None]
    later = f"; back after {min(backs):.1f} to {max(backs):.1f} s" if backs else ""
    return f"{len(faults)} on purpose: {told}{later}"


def _read(text: str) -> Fault | None:
    """The fault of a text; None if a later version wrote it."""
    try:
        return next(iter(Faults.read(text).faults), None)
    except NotationError:
        return None


def _planned_end(fault: Fault, at: float, trace: Trace) -> float | None:
    """When a fault of a virtual run is over, which happens as planned."""
    seconds = getattr(fault, "seconds", None)
    stop = getattr(fault, "stop", None)
    if trace.kind != "virtual" or (seconds is None and stop is None):
        return None
    length: float = stop - fault.start if seconds is None else seconds  # type: ignore[attr-defined]
    return at + length


def _back(trace: Trace, crash: Fault, at: float) -> float | None:
    """Seconds until the next incarnation of a process worked; in a virtual run as planned."""
    if trace.kind == "virtual":
        planned: float | None = getattr(crash, "restart", None)
        return planned
    (name,) = crash.members() or ("coordinator",)
    lives = [each for each in trace.processes if each.name == name and each.began >= at]
    moments = [_works(each) for each in lives]
    return min((moment - at for moment in moments if moment is not None), default=None)


def _works(process: ProcessTrace) -> float | None:
    """When a process was ready to work; None if it never was."""
    if process.header.role == "worker" and not process.spans:
        return None
    return started(process)


def _past(fault: Fault) -> str:
    """What happened, without how long: `worker 2 killed`."""
    words = fault.words.partition(" for ")[0]
    return words.replace(" is ", " ", 1) if " is " in words else words


def _kind(fault: Fault) -> str:
    """The kind of a fault for a count: `workers killed`."""
    names = {name.partition("-")[0] for name in fault.members()}
    who = f"{names.pop()}s" if len(names) == 1 else "hosts" if "host" in fault.words else "links"
    if isinstance(fault, CoordinatorCrash):
        return "coordinator killed"
    doing = {"crash": "killed", "pause": "stopped"}.get(fault.name, fault.name.replace("_", " "))
    return f"{who} {doing}"
