"""The job of a script, and options that several subcommands share."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from manyhands.cli.exit import leave
from manyhands.job import Job
from manyhands.pacing import Pace
from manyhands.script.loading import MODULE, execute
from manyhands.seeding import seed_python

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from types import ModuleType


def enter(script: Path, arguments: Sequence[str]) -> None:
    """Set `sys.argv` and `sys.path` as if Python executed the script."""
    if not script.is_file():
        leave(f"manyhands: there is no file {script}")
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))


@contextlib.contextmanager
def explained(script: Path) -> Iterator[None]:
    """Exit with a message if the script uses relative imports."""
    try:
        yield
    except ImportError as error:
        if "attempted relative import" not in str(error):
            raise
        package = script.resolve().parent
        leave(
            f"manyhands: {script} uses relative imports, which need a package: call mh.train in "
            f"it and run python -m {package.name}.{script.stem} in {package.parent}, or use "
            "absolute imports"
        )


def load_job(script: Path, name: str | None = None) -> tuple[str, Job, ModuleType]:
    """Execute the script up to its main guard; return its only job, or the one of this name."""
    # As in a worker: what the script draws at its top level is the same whenever it is executed.
    seed_python(0)
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
    """The options with `--slow` parsed."""
    texts = options.get("slow")
    try:
        return {**options, "slow": tuple(map(Pace.read, texts)) if texts else None}
    except ValueError as error:
        leave(f"manyhands: {error}")
