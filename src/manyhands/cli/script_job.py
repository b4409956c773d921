"""What subcommands share: a script's job, and options read."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from manyhands.cli.exit import leave
from manyhands.job import Job
from manyhands.pacing import Pace
from manyhands.script.loading import MODULE, execute

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from types import ModuleType


def enter(script: Path, arguments: Sequence[str]) -> None:
    """Make this process look as if Python had been told to execute the script."""
    if not script.is_file():
        leave(f"manyhands: there is no file {script}")
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))


@contextlib.contextmanager
def explained(script: Path) -> Iterator[None]:
    """Say what to do about a script that imports relative to its package."""
    try:
        yield
    except ImportError as error:
        if "attempted relative import" not in str(error):
            raise
        package = script.resolve().parent
        leave(
            f"manyhands: {script} imports relative to its package, which a file alone does not "
            f"have: call mh.train in it and run python -m {package.name}.{script.stem} in "
            f"{package.parent}, or import by full names"
        )


def load_job(script: Path, name: str | None = None) -> tuple[str, Job, ModuleType]:
    """Execute the script up to its main guard: its only job, or the one of this name."""
    with explained(script):
        module = execute(script.resolve(), MODULE)
    jobs = jobs_of(module)
    if name is not None and name in jobs:
        return name, jobs[name], module
    found = f"{len(jobs)} jobs ({', '.join(jobs)})" if jobs else "no job"
    if name is not None:
        leave(f"{script} has no job named '{name}' at its top level; it has {found}")
    if len(jobs) != 1:
        leave(f"{script} has {found} at its top level; it needs exactly one, or --job NAME")
    ((found, job),) = jobs.items()
    return found, job, module


def jobs_of(module: ModuleType) -> dict[str, Job]:
    """The jobs at a module's top level, by name."""
    return {name: value for name, value in vars(module).items() if isinstance(value, Job)}


def paced(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with what `--slow` says read."""
    texts = options.get("slow")
    try:
        return {**options, "slow": tuple(map(Pace.read, texts)) if texts else None}
    except ValueError as error:
        leave(f"manyhands: {error}")
