"""The folder of a search: its identity, the results of its trials, and their runs."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Final

import msgspec

from manyhands.files.checkpoints import CHECKPOINTS, generations
from manyhands.lab.search.trial import TrialResult

if TYPE_CHECKING:
    from pathlib import Path

    from manyhands.lab.search.trial import Trial

IDENTITY: Final = "search.json"
_RESULTS: Final = "trials.jsonl"


class SearchFolder:
    """The files of a search.

    A result is one line of `trials.jsonl`, written and synced before the next trial is proposed.

    Args:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.report = path / "report.html"
        self._file = path / _RESULTS

    def results(self) -> dict[int, TrialResult]:
        """The results so far, by the number of the trial; an incomplete last line is cut off."""
        try:
            content = self._file.read_bytes()
        except FileNotFoundError:
            return {}
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.truncate(self._file, len(whole))
        found = (msgspec.json.decode(line, type=TrialResult) for line in whole.splitlines())
        return {one.trial.number: one for one in found}

    def note(self, result: TrialResult) -> None:
        """Store a result; it is on the disk when this returns."""
        with self._file.open("ab") as file:
            file.write(msgspec.json.encode(result) + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def run(self, number: int) -> Path:
        """The folder of a trial's run."""
        return self.path / "trials" / f"{number:04}"

    def log(self, number: int) -> Path:
        """The file with what a trial's processes print."""
        return self.path / "logs" / f"{number:04}.log"

    def donor(self, trial: Trial) -> Path | None:
        """The folder of the run that a trial goes on from."""
        return self.run(trial.parent) if trial.continues and trial.parent is not None else None

    def has_checkpoint(self, number: int) -> bool:
        """Whether the run of a trial has stored a checkpoint."""
        return bool(generations(self.run(number) / CHECKPOINTS))

    def clear(self, number: int) -> None:
        """Remove the run of a trial."""
        shutil.rmtree(self.run(number), ignore_errors=True)

    def clear_checkpoints(self, number: int) -> None:
        """Remove the checkpoints of a trial from which none goes on."""
        shutil.rmtree(self.run(number) / CHECKPOINTS, ignore_errors=True)
