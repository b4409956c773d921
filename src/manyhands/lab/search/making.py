"""How trials are made: live by processes `manyhands train`, or on the virtual clock in forks."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch

from manyhands.free import written
from manyhands.lab.launcher import end as end_process
from manyhands.lab.launcher import start
from manyhands.lab.runs import last_words
from manyhands.live.processes.forked_call import ForkedCall, wait
from manyhands.live.processes.forked_call import end as end_calls
from manyhands.reports import ending
from manyhands.script.loading import made
from manyhands.trace import read
from manyhands.verbs.asked import Asked
from manyhands.verbs.simulate import plan

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from manyhands.job import Job
    from manyhands.lab.design import Budget, Script, VirtualConditions
    from manyhands.lab.search.trial import Trial

_LOOK_EVERY = 0.1
"""Seconds between two checks of the trials that are under way."""
_REFUSED = 2
"""The exit code of a request that cannot be carried out."""


@dataclass(frozen=True)
class TrialSettings:
    """What all trials have in common."""

    budget: Budget
    seed: int
    strategy: str | None = None
    workers: int = 1
    checkpoint: str | None = None
    """When a trial stores checkpoints; by default four times, so that one that dies goes on."""
    threads: int = 1
    """Threads of each worker."""

    def strategy_of(self, trial: Trial) -> str:
        """The strategy of a trial: that of its values, if it is a free parameter."""
        chosen = trial.values.get("strategy", self.strategy)
        return chosen or ("single()" if self.workers_of(trial) == 1 else "allreduce()")

    def workers_of(self, trial: Trial) -> int:
        """The workers of a trial: those of its values, if they are a free parameter."""
        return int(trial.values.get("workers", self.workers))

    def options(self, trial: Trial, *, goes_on: bool) -> dict[str, Any]:
        """The limits of a trial's run, and when it stores checkpoints.

        Args:
            trial: the trial.
            goes_on: whether others may continue it, so that it must store one at its end.
        """
        options = vars(self.budget) | {"checkpoint": self.checkpoint}
        if trial.until is not None:
            options |= {"samples": trial.until, "epochs": None}
            if goes_on:
                options["checkpoint"] = f"{trial.until} samples"
            elif self.checkpoint is None:
                options["checkpoint"] = f"{max(1, trial.until // 4)} samples"
        return options


class Attempt(Protocol):
    """A trial that is being made."""

    def is_over(self) -> bool:
        """Whether it has ended."""

    def failure(self) -> tuple[str, bool]:
        """Why it failed, empty if it did not; and whether it is worth another attempt."""

    def end(self) -> None:
        """End it now."""


class Making(Protocol):
    """Makes trials."""

    @property
    def can_repeat(self) -> bool:
        """Whether a trial that died goes on from its own checkpoint."""

    def begin(
        self, trial: Trial, folder: Path, log: Path, resume: Path | None, *, goes_on: bool
    ) -> Attempt:
        """Start a trial; `resume` is the folder of the run that it goes on from."""

    def wait(self, attempts: Collection[Attempt]) -> None:
        """Return when one of them may have ended, or after a short time."""


@dataclass(frozen=True)
class LiveTrials:
    """Each trial is a process `manyhands train`, with its own worker processes."""

    script: Script
    settings: TrialSettings
    can_repeat: bool = True

    def begin(
        self, trial: Trial, folder: Path, log: Path, resume: Path | None, *, goes_on: bool
    ) -> Attempt:
        """Start a trial."""
        options = {
            "job": self.script.job,
            "strategy": self.settings.strategy_of(trial),
            "workers": self.settings.workers_of(trial),
            "seed": self.settings.seed,
            **self.settings.options(trial, goes_on=goes_on),
            "keep": 1,
            "resume": resume,
            "output": folder,
            "parent": os.getpid(),
        }
        words = [sys.executable, "-m", "manyhands", "train", str(self.script.path), "--quiet"]
        for name, value in options.items():
            if value is not None:
                words += [f"--{name.replace('_', '-')}", str(value)]
        words += settings_words(trial.values)
        if self.script.arguments:
            words += ["--", *self.script.arguments]
        # Several trials share the cores.
        threads = os.environ.get("OMP_NUM_THREADS", str(self.settings.threads))
        return _Process(start(words, log, {"OMP_NUM_THREADS": threads}), folder, log)

    def wait(self, attempts: Collection[Attempt]) -> None:  # noqa: ARG002 - the contract
        """Return after a short time."""
        time.sleep(_LOOK_EVERY)


def settings_words(values: Mapping[str, Any]) -> list[str]:
    """Values as options of the command line."""
    return [
        word for name, value in values.items() for word in ("--set", f"{name}={written(value)}")
    ]


@dataclass
class _Process:
    """A trial that is a process with a log."""

    process: subprocess.Popen[bytes]
    folder: Path
    log: Path

    def is_over(self) -> bool:
        return self.process.poll() is not None

    def failure(self) -> tuple[str, bool]:
        code = self.process.wait()
        if code == 0:
            return "", False
        words = last_words(self.log) or f"it exited with code {code} and an empty log"
        try:
            found = ending(read(self.folder))
        except (OSError, ValueError):
            return words, code != _REFUSED
        if found.words.startswith("diverged"):
            return found.words, False
        return words, code != _REFUSED

    def end(self) -> None:
        end_process(self.process)


@dataclass(frozen=True)
class VirtualTrials:
    """Each trial is a call of `simulate` in a forked process, which computes in one thread."""

    source: Callable[..., Job]
    """The function that makes the job."""
    settings: TrialSettings
    conditions: VirtualConditions
    can_repeat: bool = False

    def begin(
        self,
        trial: Trial,
        folder: Path,
        log: Path,  # noqa: ARG002 - the contract
        resume: Path | None,
        *,
        goes_on: bool,
    ) -> Attempt:
        """Start a trial."""
        return _Fork(ForkedCall(partial(self._make, trial, folder, resume, goes_on)))

    def _make(
        self, trial: Trial, folder: Path, resume: Path | None, goes_on: bool, send: Any
    ) -> str:
        torch.set_num_threads(1)
        try:
            asked = self.asked(trial, folder, resume, goes_on=goes_on)
            plan(made(self.source, trial.values), asked, "search").carry_out(send)
        except Exception as error:  # noqa: BLE001 - the other trials are still made
            return str(error).partition("\n")[0] or type(error).__name__
        return ""

    def asked(
        self, trial: Trial, folder: Path | None, resume: Path | None, *, goes_on: bool
    ) -> Asked:
        """What is asked of a trial's virtual run."""
        given = self.settings.options(trial, goes_on=goes_on)
        if not goes_on:
            # It is made in one go, and is the same when it is made again.
            given["checkpoint"] = None
        conditions = {
            name: value for name, value in vars(self.conditions).items() if name != "hosts"
        }
        return Asked(
            strategy=self.settings.strategy_of(trial),
            workers=self.settings.workers_of(trial),
            seed=self.settings.seed,
            resume=resume,
            output=folder,
            **given,
            **conditions,
        )

    def wait(self, attempts: Collection[Attempt]) -> None:
        """Return when one of them has something to say."""
        calls = {one.call for one in attempts if isinstance(one, _Fork) and not one.call.is_over}
        for call in wait(calls, _LOOK_EVERY):
            call.read()


@dataclass
class _Fork:
    """A trial that is a call in a forked process."""

    call: ForkedCall

    def is_over(self) -> bool:
        return self.call.is_over

    def failure(self) -> tuple[str, bool]:
        if self.call.result is None:
            return f"its process {self.call.ending}", True
        return self.call.result, False

    def end(self) -> None:
        end_calls([self.call])
