"""`reproduce`: a stored comparison made again, and whether it came out the same."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from manyhands.files.run_folders import new_folder, release, stamp
from manyhands.lab.compare import Compared, carry_out
from manyhands.lab.provenance import account
from manyhands.lab.reproduction.records import design_of, recorded_design
from manyhands.lab.reproduction.stored_script import FoundScript, find_script, load_job
from manyhands.reports import read_results
from manyhands.reports.comparison.likeness import (
    differences_in_status,
    differences_to_the_bit,
    missing_figures,
    repeated_figures,
)
from manyhands.reports.formatting import plural

if TYPE_CHECKING:
    from manyhands.job import Job
    from manyhands.lab.design import Design
    from manyhands.reports import Comparison, RepeatedFigure

_VERSIONS = ("manyhands", "torch", "numpy", "python", "os")
_OF_THE_MACHINE = ("cpu", "cores", "devices")


@dataclass(frozen=True)
class Reproduction:
    """A stored comparison that was made again.

    Example:
        >>> import manyhands as mh
        >>> again = mh.Compared(Path("comparisons/2"), mh.Comparison(), report=None)
        >>> mh.Reproduction(mh.Comparison(), again).same
        True
    """

    stored: Comparison
    """The results that were stored."""
    again: Compared
    """The comparison that was made now."""
    versions: tuple[str, ...] = ()
    """Versions and facts of the machine that differ, in words."""
    differences: tuple[str, ...] = ()
    """What came out differently, in words; empty if nothing did."""
    figures: tuple[RepeatedFigure, ...] = ()
    """Of a live comparison, every figure and the interval in which it was expected."""

    @property
    def same(self) -> bool:
        """Whether it came out the same: virtual to the bit, live within the intervals."""
        return not self.differences

    def summary(self) -> str:
        """Whether it came out the same, and every difference.

        Returns:
            The text that `manyhands reproduce` prints.
        """
        return "\n".join([*self.versions, self.outcome()])

    def outcome(self) -> str:
        """The summary without the versions that differ."""
        figures = [*map(str, self.figures)]
        others = [words for words in self.differences if words not in figures]
        return "\n".join([*figures, *others, self._verdict(), self.again.where()])

    def _verdict(self) -> str:
        runs = len(self.stored.runs)
        if not self.same:
            count = len(self.differences)
            return f"different: {count} difference{plural(count)}"
        if self.figures:
            return f"the same: all {len(self.figures)} figures are within their intervals"
        return f"the same: {runs} run{plural(runs)}, equal to the bit"


@dataclass(frozen=True)
class ReproductionPlan:
    """A comparison that is about to be made again."""

    stored: Comparison
    design: Design
    job: Job
    folder: Path
    script: FoundScript | None
    versions: tuple[str, ...]

    def carry_out(self, console: Console) -> Reproduction:
        """Make the runs, and compare them with the stored ones."""
        if self.script is None:
            again = carry_out(self.design, self.job, self.folder, console)
        else:
            with self.script.importable():
                again = carry_out(self.design, self.job, self.folder, console)
        if self.design.virtual is not None:
            found = differences_to_the_bit(self.stored, again.results)
            return Reproduction(self.stored, again, self.versions, found)
        figures = repeated_figures(self.stored, again.results)
        found = (
            *differences_in_status(self.stored, again.results),
            *missing_figures(self.stored, again.results),
            *(str(figure) for figure in figures if not figure.is_within),
        )
        return Reproduction(self.stored, again, self.versions, found, figures)


def reproduce(
    results: str | Path,
    job: Job | None = None,
    *,
    script: str | Path | None = None,
    output: str | Path | None = None,
) -> Reproduction:
    """Make a stored comparison again, and compare it with what was stored.

    Virtual runs are the same if they are equal to the bit, live ones if every figure is within the
    interval that the stored repeats give it. Call it below `if __name__ == "__main__":`.

    Args:
        results: a `results.json`, or the folder that holds it.
        job: the job, for a virtual comparison whose job was in no script. Default: that of the
            script.
        script: the script's file. Default: the file if it is where it was and unchanged, otherwise
            its stored text.
        output: folder for the new comparison; an interrupted one is continued. Default: a new one
            in `comparisons`.

    Returns:
        The new comparison, and how it differs.

    Raises:
        TypeError: the script has no such job at its top level.
        ValueError: the results do not hold the design or the script of the comparison.

    Example:
        >>> import torch
        >>> import manyhands as mh
        >>> data = torch.utils.data.TensorDataset(torch.eye(2).repeat(32, 1), torch.arange(64) % 2)
        >>> job = mh.Job(
        ...     model=lambda: torch.nn.Linear(2, 2),
        ...     optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=1.0),
        ...     loss=torch.nn.functional.cross_entropy,
        ...     data=data,
        ...     global_batch=16,
        ...     epochs=2,
        ... )
        >>> found = mh.compare(job, "asynchronous", workers=2, repeats=1, virtual=True)
        >>> mh.reproduce(found.folder, job).same
        True
    """
    planned = plan_reproduction(
        Path(results),
        job,
        None if script is None else Path(script),
        None if output is None else Path(output),
    )
    return planned.carry_out(Console(stderr=True))


def plan_reproduction(
    results: Path, job: Job | None, script: Path | None, output: Path | None
) -> ReproductionPlan:
    """Everything that is needed to make a stored comparison again; no run is started."""
    stored = read_results(results)
    record = recorded_design(stored)
    if job is not None and record.kind == "live":
        raise ValueError("the workers of a live comparison load its job from a script: omit job")
    folder = output or new_folder(Path("comparisons") / stamp())
    found = None
    try:
        if job is None:
            beside = results if results.is_dir() else results.parent
            found, job = _load(stored, beside, script, folder)
        design = design_of(stored, found.script if found else None)
        versions = _versions(stored, design, job)
    except Exception:
        release(folder)
        raise
    return ReproductionPlan(stored, design, job, folder, found, versions)


def _load(
    stored: Comparison, beside: Path, given: Path | None, folder: Path
) -> tuple[FoundScript, Job]:
    """The script of a stored comparison, and its job."""
    if stored.source is None:
        raise ValueError(
            "the job of this comparison was in no script: call mh.reproduce(results, job) where "
            "the job is defined"
        )
    found = find_script(stored.source, beside, given, folder)
    with found.importable():
        return found, load_job(found.script)


def _versions(stored: Comparison, design: Design, job: Job) -> tuple[str, ...]:
    """Versions that differ from the stored ones, and of a live comparison facts of the machine."""
    now = account(design, job, ())
    found = [(name, getattr(stored, name), getattr(now, name)) for name in _VERSIONS]
    # A processor may add in another order than another one does.
    of_machine = _OF_THE_MACHINE if design.virtual is None else ("cpu",)
    found += [
        (name, getattr(stored.machine, name), getattr(now.machine, name)) for name in of_machine
    ]
    return tuple(
        f"{name}: {before or 'not recorded'} stored, {current} now"
        for name, before, current in found
        if before != current
    )
