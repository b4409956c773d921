"""How one run of a comparison is made: live as a process, or virtually in this one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from manyhands.lab.hosting import hosts_of
from manyhands.lab.launcher import Launcher, end, start
from manyhands.lab.networks.namespaces import check_permitted
from manyhands.live.devices import devices
from manyhands.verbs.simulate import Asked, plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from manyhands.job import Job
    from manyhands.lab.design import Design
    from manyhands.lab.order import PlannedRun

_LOOK_EVERY = 0.2
"""Seconds between two looks at a run that is under way."""
_TAIL = 4096
"""Bytes at the end of a log that are looked at."""


class Runs(Protocol):
    """A way to make runs."""

    @property
    def kind(self) -> Literal["live", "virtual"]:
        """Of which kind."""

    def check(self, turn: PlannedRun) -> None:
        """Raise ValueError or TypeError, naming the fix, if a run cannot be made so."""

    def make(self, turn: PlannedRun, folder: Path, log: Path, tell: Callable[[str], None]) -> str:
        """Make the run in that folder; why it failed, or nothing. `tell` hears how far it is."""


@dataclass(frozen=True)
class LiveRuns:
    """Each run is a process `manyhands train`, with processes of its own."""

    design: Design
    launch: Launcher = start
    kind: Literal["live"] = "live"

    def check(self, turn: PlannedRun) -> None:
        """Workers of one host can share memory; those of GPUs, or of several hosts, cannot."""
        hosts = ["this host"]
        if self.design.network:
            hosts = [f"w{number}" for number in range(turn.workers)]
            check_permitted()
        turn.entrant.strategy.check_places(hosts, devices(turn.workers))

    def make(self, turn: PlannedRun, folder: Path, log: Path, tell: Callable[[str], None]) -> str:
        """Start it, follow its log, and end it whatever happens here."""
        process = self.launch(command(self.design, turn, folder), log)
        try:
            while True:
                try:
                    code = process.wait(_LOOK_EVERY)
                    break
                except subprocess.TimeoutExpired:
                    tell(last_line(log))
        finally:
            end(process)
        return _why(code, last_words(log)) if code else ""


def _why(code: int, last: str) -> str:
    """Why a run failed: the last line of its log is that of the traceback, if there is one."""
    if code < 0:
        return f"ended by {signal.Signals(-code).name}; its last words: {last or 'none'}"
    return last or f"it left with code {code} and without a word"


def command(design: Design, turn: PlannedRun, folder: Path) -> list[str]:
    """The command that makes a live run."""
    script = design.script
    if script is None:
        raise ValueError("live runs need a script that other processes can take the job from")
    options = {
        "job": script.job,
        "strategy": turn.entrant.strategy,
        "workers": turn.workers,
        "seed": turn.seed,
        **vars(design.budget),
        "network": design.network or None,
        "output": folder,
        "parent": os.getpid(),
    }
    words = [sys.executable, "-m", "manyhands", "train", str(script.path)]
    for name, value in options.items():
        if value is not None:
            words += [f"--{name}", str(value)]
    # The last line of a run's log is shown as its progress.
    words += ["--quiet"]
    for pace in design.paces(turn):
        words += ["--slow", str(pace)]
    return [*words, "--", *script.arguments] if script.arguments else words


def last_line(log: Path) -> str:
    """The last line in a log that says anything."""
    return next((line.strip() for line in _from_the_end(log)), "")


def last_words(log: Path) -> str:
    """The line in a log with which its last message begins.

    Lines of it that are indented, as those that point into a text with a caret, explain the first.
    """
    found = list(_from_the_end(log))
    begins = (line for line in found if not line[0].isspace())
    return next(begins, found[0] if found else "").strip()


def _from_the_end(log: Path) -> Iterator[str]:
    """The lines at the end of a log, the last one first, without those that have no word."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
            text = file.read(_TAIL).decode("utf-8", "replace")
    except OSError:
        return
    yield from (line for line in reversed(text.splitlines()) if any(map(str.isalnum, line)))


@dataclass(frozen=True)
class VirtualRuns:
    """Each run is a call of `simulate`."""

    design: Design
    job: Job
    kind: Literal["virtual"] = "virtual"

    def check(self, turn: PlannedRun) -> None:
        """Only protocols are simulated."""
        plan(self.job, self._asked(turn, Path("unused")), "comparison")

    def make(self, turn: PlannedRun, folder: Path, log: Path, tell: Callable[[str], None]) -> str:  # noqa: ARG002 - the contract
        """Simulate it; what goes wrong in it is a result."""
        tell("on a virtual clock")
        try:
            plan(self.job, self._asked(turn, folder), "comparison").carry_out(tell)
        except Exception as error:  # noqa: BLE001 - whatever it is, the others are still compared
            return str(error).partition("\n")[0] or type(error).__name__
        return ""

    def _asked(self, turn: PlannedRun, folder: Path) -> Asked:
        design = self.design
        return Asked(
            strategy=turn.entrant.strategy,
            workers=turn.workers,
            seed=turn.seed,
            slow=design.paces(turn) or None,
            stretch=_stretch(design, turn),
            output=folder,
            **vars(design.budget),
            **(vars(design.virtual) if design.virtual else {})
            | {"hosts": hosts_of(design, turn.workers)},
        )


def _stretch(design: Design, turn: PlannedRun) -> float | None:
    """The job's times are those on the fewest workers: with more, each has a smaller share."""
    fewest = min(design.workers)
    return None if turn.workers == fewest else fewest / turn.workers
