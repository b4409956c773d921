"""Execution of a comparison's runs: live in a new process, or virtually in this one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from manyhands.lab.hosting import hosts_of
from manyhands.lab.launcher import Launcher, end, start
from manyhands.lab.networks.namespaces import check_permitted
from manyhands.live.devices import devices
from manyhands.script.user_line import user_line, user_line_of
from manyhands.verbs.asked import Asked
from manyhands.verbs.simulate import plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from manyhands.cluster import Cluster
    from manyhands.job import Job
    from manyhands.lab.design import Design
    from manyhands.lab.order import PlannedRun

_LOOK_EVERY = 0.2
"""Seconds between two checks of a run that is under way."""
_TAIL = 4096
"""Bytes at the end of a log that are read for its last message,"""
_TRACEBACK = 1 << 16
"""and for the line of the user's code in it."""


class Runs(Protocol):
    """Executes runs, live or virtually."""

    @property
    def kind(self) -> Literal["live", "virtual"]:
        """The kind of the runs."""

    def check(self, turn: PlannedRun) -> None:
        """Raise ValueError or TypeError, with the fix, if a run is not possible."""

    def make(self, turn: PlannedRun, folder: Path, log: Path, show: Callable[[str], None]) -> str:
        """Execute a run in that folder; return why it failed, or an empty string.

        `show` receives its progress.
        """


@dataclass(frozen=True)
class LiveRuns:
    """Each run is a process `manyhands train`, with its own worker processes."""

    design: Design
    launch: Launcher = start
    kind: Literal["live"] = "live"

    def check(self, turn: PlannedRun) -> None:
        """Check the hosts and devices: strategies with shared memory need one host and CPUs."""
        hosts = ["this host"]
        if self.design.links(turn):
            hosts = [f"w{number}" for number in range(turn.workers)]
            check_permitted()
        elif cluster := cluster_of(self.design, turn):
            hosts = [host.name for host in cluster.hosts]
            check_permitted()
        turn.entrant.strategy.check_places(hosts, devices(turn.workers))

    def make(self, turn: PlannedRun, folder: Path, log: Path, show: Callable[[str], None]) -> str:
        """Start the run, follow its log, and end it even if an exception is raised here."""
        process = self.launch(command(self.design, turn, folder), log)
        try:
            while True:
                try:
                    code = process.wait(_LOOK_EVERY)
                    break
                except subprocess.TimeoutExpired:
                    show(last_line(log))
        finally:
            end(process)
        return _why(code, last_words(log)) if code else ""


def _why(code: int, last: str) -> str:
    """Why a run failed: the last message of its log, or its exit code."""
    if code < 0:
        return f"ended by {signal.Signals(-code).name}; last line of its log: {last or 'none'}"
    return last or f"it exited with code {code} and an empty log"


def cluster_of(design: Design, turn: PlannedRun) -> Cluster | None:
    """The cluster whose network a run needs; None for one host, or the one worker of `single()`."""
    if design.cluster is None or len(design.cluster.hosts) == 1:
        return None
    return None if turn.entrant.strategy.needs(1).only_one_worker else design.cluster


def command(design: Design, turn: PlannedRun, folder: Path) -> list[str]:
    """The command that executes a live run."""
    script = design.script
    if script is None:
        raise ValueError("live runs need a script from which other processes load the job")
    options = {
        "job": script.job,
        "strategy": turn.entrant.strategy,
        "workers": turn.workers,
        "seed": turn.seed,
        **vars(design.budget),
        "faults": design.faults.text or None,
        "network": design.links(turn) or None,
        "cluster": cluster_of(design, turn),
        "lr": design.rate(turn),
        "output": folder,
        "parent": os.getpid(),
    }
    words = [sys.executable, "-m", "manyhands", "train", str(script.path)]
    for name, value in options.items():
        if value is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    # The last line of a run's log is shown as its progress.
    words += ["--quiet"]
    for pace in design.paces(turn):
        words += ["--slow", str(pace)]
    return [*words, "--", *script.arguments] if script.arguments else words


def last_line(log: Path) -> str:
    """The last line of a log that has text."""
    return next((line.strip() for line in _from_the_end(log)), "")


def last_words(log: Path) -> str:
    """The first line of the last message in a log.

    Indented lines, such as those with a caret under a text, belong to the line before them.
    """
    found = list(_from_the_end(log))
    begins = (line for line in found if not line[0].isspace())
    return next(begins, found[0] if found else "").strip()


def failed_line(log: Path) -> str:
    """The line of the user's code at which the run of a log failed; empty if it names none."""
    return user_line_of(_end_of(log, _TRACEBACK))


def _from_the_end(log: Path) -> Iterator[str]:
    """The lines at the end of a log, the last one first, without lines that have no text."""
    lines = reversed(_end_of(log, _TAIL).splitlines())
    yield from (line for line in lines if any(map(str.isalnum, line)))


def _end_of(log: Path, most: int) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - most))
            return file.read(most).decode("utf-8", "replace")
    except OSError:
        return ""


@dataclass(frozen=True)
class VirtualRuns:
    """Each run is a call of `simulate`."""

    design: Design
    job: Job
    kind: Literal["virtual"] = "virtual"

    def check(self, turn: PlannedRun) -> None:
        """Check that the run can be simulated, with all of its options."""
        plan(self.job, self.asked(turn, Path("unused")), "comparison")

    def make(self, turn: PlannedRun, folder: Path, log: Path, show: Callable[[str], None]) -> str:
        """Simulate the run; an exception in it is its result."""
        show("on a virtual clock")
        try:
            plan(self.job, self.asked(turn, folder), "comparison").carry_out(show)
        except Exception as error:  # noqa: BLE001 - the other runs are still compared
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
            words, kind = str(error).partition("\n")[0], type(error).__name__
            # Messages of our own are sentences; those of the user's code need their kind.
            return f"{kind}: {words}".removesuffix(": ") if user_line(error) or not words else words
        return ""

    def asked(self, turn: PlannedRun, folder: Path) -> Asked:
        """What a run is asked for, with its result in that folder."""
        design = self.design
        conditions = design.virtual and design.virtual.at(turn)
        return Asked(
            strategy=turn.entrant.strategy,
            workers=turn.workers,
            seed=turn.seed,
            slow=design.paces(turn) or None,
            stretch=_stretch(design, turn),
            faults=design.faults or None,
            # One worker alone has no use for the hosts of a declared cluster.
            cluster=None if turn.entrant.strategy.needs(1).only_one_worker else design.cluster,
            lr=design.rate(turn),
            output=folder,
            **vars(design.budget),
            **(vars(conditions) if conditions else {})
            | {"hosts": hosts_of(design, turn.workers, conditions)},
        )


def _stretch(design: Design, turn: PlannedRun) -> float | None:
    """Scale of compute times, which are given for the fewest workers: more have smaller shares."""
    fewest = min(design.workers)
    return None if turn.workers == fewest else fewest / turn.workers
