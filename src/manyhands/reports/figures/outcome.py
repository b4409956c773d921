"""Settings of a run, and how it ended."""

import math
import os
from dataclasses import dataclass
from pathlib import Path

from manyhands.trace import Header, ProcessTrace, Setting, Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a run ended."""

    status: str
    """finished, failed, interrupted; without a record of its end `running`, if a process that would
    write it is alive, else `unfinished`."""
    words: str


def ending(trace: Trace) -> Ending:
    """How the run ended, as recorded by the agent, or by the coordinator if it outlived the agent.

    Without an agent (under torchrun), worker 0 records it. If there is no record, the run is still
    running, or the process was killed; the words are then the last record of any process.
    """
    for process in _judges(trace):
        for event in reversed(process.events):
            if event.what == "end":
                end = Ending(
                    status=event.detail.get("status", "unfinished"),
                    words=event.detail.get("words", ""),
                )
                # A run that diverged has failed, even if it was told to go on.
                diverged = _divergence(trace) if end.status in ("finished", "failed") else ""
                if diverged:
                    return Ending(status="failed", words=f"diverged: {diverged}")
                if end.status == "finished" and not end.words:
                    return Ending(status="finished", words=_returned_early(trace))
                return end
    status = "running" if any(lives(process.header) for process in _judges(trace)) else "unfinished"
    return Ending(status=status, words=_last_words(trace))


def _returned_early(trace: Trace) -> str:
    """How far the user's own loop came, if it returned before the end of the run."""
    return next(
        (
            event.detail.get("words", "")
            for process in trace.workers
            for event in process.events
            if event.what == "returned early"
        ),
        "",
    )


def _divergence(trace: Trace) -> str:
    """Where a loss was seen first that is not finite; on a worker that made it, if there is one."""
    found = [
        (event.detail.get("own") != "yes", event.at, event.detail.get("words", ""))
        for process in trace.processes
        for event in process.events
        if event.what == "diverged"
    ]
    if found:
        return min(found)[2]
    # A worker whose updates are not applied has not diverged, unless no worker has a finite loss.
    last = [
        {event.detail.get("words", "") for event in process.events if event.what == "no loss"}
        for process in trace.workers
    ]
    return min(set.union(*last)) if last and all(last) else ""


def settings(trace: Trace) -> tuple[Setting, ...]:
    """The run's settings, each once, in the order they were written."""
    found: dict[str, Setting] = {}
    for process in trace.processes:
        for setting in process.settings:
            found.setdefault(setting.name, setting)
    return tuple(found.values())


def parameters_digest(trace: Trace) -> str | None:
    """SHA-256 of the final parameters, if the run wrote it down."""
    found = [
        (event.at, event.detail["sha256"])
        for process in trace.processes
        for event in process.events
        if event.what == "parameters" and "sha256" in event.detail
    ]
    return max(found)[1] if found else None


def division(trace: Trace) -> tuple[str, ...]:
    """How the model was divided among the workers of the last group, a line for every part."""
    found: tuple[float, dict[str, str]] = (-math.inf, {})
    for process in trace.processes:
        for event in process.events:
            if event.what == "divided" and event.at > found[0]:
                found = event.at, event.detail
    return tuple(found[1][key] for key in sorted(found[1], key=int))


def mishaps(trace: Trace) -> tuple[str, ...]:
    """Losses and restarts of processes and repeated steps, in words; each once, in order."""
    found: dict[str, str] = {}
    for process in trace.processes:
        for event in process.events:
            if event.what == "repeated":
                found.setdefault(f"step {event.detail.get('step', '?')} was repeated", "")
            if event.what == "returned" and "member" in event.detail:
                found.setdefault(f"{event.detail['member']} has rejoined", "")
            if event.what in {"lost", "restart"} and "words" in event.detail:
                again = ", started again" if event.what == "restart" else ""
                found.setdefault(event.detail["words"], again)
    return tuple(words + again for words, again in found.items())


def _judges(trace: Trace) -> list[ProcessTrace]:
    """The processes that record the end, by precedence, the latest incarnation first."""
    roles = [process.header.role for process in trace.processes]
    competent = ("agent", "coordinator") if "agent" in roles else ("coordinator", "worker")
    return sorted(
        (
            process
            for process in trace.processes
            if process.header.role in competent and process.header.rank == 0
        ),
        key=lambda process: (competent.index(process.header.role), -process.life),
    )


def lives(header: Header) -> bool:
    """Whether the process that wrote a trace is still there: on this host, since the same boot.

    A later process may have its number; it started after the trace was begun.
    """
    try:
        if header.boot != Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip():
            return False
        # The name of a program, in brackets, may hold anything; the 22nd field is the start.
        fields = Path(f"/proc/{header.pid}/stat").read_text("utf-8", "replace")
        state, *rest = fields.rpartition(")")[2].split()
    except OSError:
        return False
    started = int(rest[18]) / os.sysconf("SC_CLK_TCK")
    return state not in "ZX" and started <= header.clock + 1.0


def _last_words(trace: Trace) -> str:
    events = [
        (event.at, process.name, event) for process in trace.processes for event in process.events
    ]
    if not events:
        return "no process left a record"
    at, name, event = max(events, key=lambda entry: entry[:2])
    detail = ", ".join(f"{key} {value}" for key, value in event.detail.items())
    return f"the last record is {name}'s at {at:,.1f} s: {event.what}{detail and f' ({detail})'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NotAppliedUpdates:
    """Updates of one worker that were not applied, because they were not finite."""

    worker: int | None
    """Its rank; None if it is not known."""
    updates: int
    samples: int
    what: str
    """NaN or infinity; both, if there were both."""
    first: str
    """Where the samples of the first are, in words."""


def refusals(trace: Trace) -> tuple[NotAppliedUpdates, ...]:
    """The updates that were not applied because they had NaN or infinity, by worker.

    A worker and several servers may have recorded the same: the largest count is taken.
    """
    found: dict[str, list[dict[str, str]]] = {}
    for process in trace.processes:
        for event in process.events:
            if event.what == "refused":
                found.setdefault(event.detail.get("worker", ""), []).append(event.detail)
    return tuple(
        NotAppliedUpdates(
            worker=int(rank) if rank.isdigit() else None,
            updates=max(_number(detail, "updates") for detail in details),
            samples=max(_number(detail, "samples") for detail in details),
            what=" and ".join(sorted({detail.get("what", "NaN") for detail in details})),
            first=_place(details),
        )
        for rank, details in sorted(found.items())
    )


def _place(details: list[dict[str, str]]) -> str:
    """Where the first refused samples are; the worker's own record has them to the sample."""
    first = min(details, key=lambda one: (_number(one, "updates"), "start" not in one))
    if "start" not in first:
        return f"sample {_number(first, 'sample'):,} of the run"
    last = max(_number(first, "start"), _number(first, "stop") - 1)
    return f"samples {first['start']} to {last} of epoch {first['epoch']}"


def _number(detail: dict[str, str], name: str) -> int:
    text = detail.get(name, "")
    return int(text) if text.isdigit() else 0
