"""The job of a script, and options that several subcommands share."""

from __future__ import annotations

import contextlib
import inspect
import sys
from typing import TYPE_CHECKING, Any

from manyhands.cli.exit import leave
from manyhands.free import free_parameters
from manyhands.job import Job
from manyhands.pacing import Pace
from manyhands.script.loading import MODULE, at, execute, job_at
from manyhands.seeding import seed_python
from manyhands.verbs.command import chosen_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
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


def load_job(
    script: Path, name: str | None = None, values: Mapping[str, str] | None = None
) -> tuple[str, Job, ModuleType]:
    """Execute the script up to its main guard; return its only job, or the one of this name.

    The name may be that of a function that returns a job; its free parameters have these values.
    """
    name, module = load_script(script, name)
    try:
        given = chosen_values(at(module, name), None, values)
        return name, job_at(module, name, given), module
    except ValueError as error:
        leave(f"manyhands: {error}")


def load_script(script: Path, name: str | None = None) -> tuple[str, ModuleType]:
    """As `load_job`, for the name of the job and the executed script."""
    # As in a worker: what the script draws at its top level is the same whenever it is executed.
    seed_python(0)
    with explained(script):
        module = execute(script.resolve(), MODULE)
    if name is not None and (isinstance(held := at(module, name), Job) or callable(held)):
        return name, module
    jobs = jobs_of(module)
    found = f"{len(jobs)} jobs ({', '.join(jobs)})" if jobs else "no job"
    if name is not None:
        leave(
            f"{script} has no job named '{name}' at its top level, nor a function of this name "
            f"that returns one; it has {found}"
        )
    if len(jobs) != 1:
        leave(
            f"{script} has {found} at its top level; it needs exactly one, or --job NAME of a job "
            "or of a function without arguments that returns one"
        )
    return next(iter(jobs)), module


def jobs_of(module: ModuleType) -> dict[str, Job | Callable[..., Job]]:
    """The jobs at a module's top level, and functions with free parameters, by name."""
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, Job) or (inspect.isfunction(value) and free_parameters(value))
    }


def read_settings(texts: Sequence[str] | None) -> dict[str, str]:
    """The texts of `--set`, by the name of the parameter."""
    found = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            leave(f"manyhands: --set takes a parameter and its value, as in lr=0.01, not {text!r}")
        found[name.strip()] = value.strip()
    return found


def paced(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with `--slow` parsed."""
    texts = options.get("slow")
    try:
        return {**options, "slow": tuple(map(Pace.read, texts)) if texts else None}
    except ValueError as error:
        leave(f"manyhands: {error}")
