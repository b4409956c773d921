"""Checks of software: the versions of Python and of the libraries, and the user's script."""

from __future__ import annotations

import contextlib
import platform
import re
import sys
import traceback
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from typing import TYPE_CHECKING

from manyhands.job import Job
from manyhands.lab.doctor.finding import Finding
from manyhands.live.processes.fork_server import can_fork
from manyhands.script.loading import execute_as_worker

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from manyhands.lab.doctor.finding import ExaminedRun, Surroundings

_REQUIREMENT = re.compile(r"^([A-Za-z0-9_.-]+)\s*([<>=!~,.\d\s]*)$")


def check_versions(_plan: ExaminedRun, _around: Surroundings) -> Iterator[Finding]:
    """The versions of Python, of Manyhands and of what it requires."""
    needed = str(metadata("manyhands")["Requires-Python"] or "")
    yield _version("python", platform.python_version(), needed)
    yield Finding("manyhands", "ok", version("manyhands"))
    for line in requires("manyhands") or ():
        match = _REQUIREMENT.match(line)
        if match is None:  # of an extra
            continue
        name, bounds = match[1], match[2].strip()
        try:
            there = version(name)
        except PackageNotFoundError:
            yield Finding(name, "error", "is not installed", f"pip install '{name}{bounds}'")
        else:
            yield _version(name, there, bounds)


def check_forking(_plan: ExaminedRun, _around: Surroundings) -> Iterator[Finding]:
    """Whether workers can be forked from one process that has torch loaded."""
    if can_fork():
        yield Finding("fork server", "ok", "workers are forked")
    else:
        words = "workers cannot be forked, so each loads torch itself: seconds and 150 MB each"
        yield Finding("fork server", "warning", words, "allow pidfd_open, or use fewer workers")


def check_job(plan: ExaminedRun, _around: Surroundings) -> Iterator[Finding]:
    """Whether the strategy can train the job on so many workers."""
    try:
        plan.strategy.check(plan.workers)
        if plan.job is not None:
            plan.strategy.check_job(plan.job, plan.workers)
    except ValueError as error:
        yield Finding("strategy", "error", str(error), "see manyhands strategies")
    else:
        yield Finding("strategy", "ok", plan.words)


def load_script(
    script: Path, arguments: Sequence[str], name: str | None
) -> tuple[Job | None, list[Finding]]:
    """Execute a script up to its main guard; its job, and what was found.

    What the script prints goes to standard error.
    """
    if not script.is_file():
        words = f"there is no file {script}"
        return None, [Finding("script", "error", words, "give the path of the script")]
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        with contextlib.redirect_stdout(sys.stderr):
            module = execute_as_worker(script.resolve())
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the script raises
        frames = traceback.extract_tb(error.__traceback__)
        lines = [str(one.lineno) for one in frames if one.filename == str(script.resolve())]
        where = f"line {lines[-1]}: " if lines else ""
        words = f"{script} does not load: {where}{type(error).__name__}: {error}"
        advice = "correct it: every worker executes the script up to its main guard"
        return None, [Finding("script", "error", words, advice)]
    jobs = {key: value for key, value in vars(module).items() if isinstance(value, Job)}
    if name in jobs or (name is None and len(jobs) == 1):
        found = name or next(iter(jobs))
        return jobs[found], [Finding("script", "ok", f"{script} has the job {found!r}")]
    words = f"{len(jobs)} jobs ({', '.join(jobs)})" if jobs else "no job"
    advice = "name one with --job NAME" if jobs else "define job = mh.Job(...) at its top level"
    asked = f", none of them named {name!r}," if name else ""
    return None, [
        Finding("script", "error", f"{script} has {words}{asked} at its top level", advice)
    ]


def _version(name: str, there: str, bounds: str) -> Finding:
    if all(_meets(there, bound.strip()) for bound in bounds.split(",") if bound.strip()):
        return Finding(name, "ok", there)
    words = f"{there} is installed, and {bounds} is required"
    return Finding(name, "error", words, f"pip install '{name}{bounds}'")


def _meets(there: str, bound: str) -> bool:
    """Whether a version is within one bound.

    >>> _meets("2.13.0+cpu", ">=2.13"), _meets("2.9", ">=2.13"), _meets("3.0", "<3")
    (True, False, False)
    """
    sign, wanted = re.fullmatch(r"([<>=!~]+)\s*(.+)", bound, re.DOTALL).groups()  # type: ignore[union-attr]
    have, want = _numbers(there), _numbers(wanted)
    length = max(len(have), len(want))
    have, want = ((*part, *(0,) * (length - len(part))) for part in (have, want))
    return {
        ">=": have >= want,
        "<": have < want,
        ">": have > want,
        "<=": have <= want,
        "==": have == want,
        "!=": have != want,
    }.get(sign, True)


def _numbers(text: str) -> tuple[int, ...]:
    numbers = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, numbers[0].split("."))) if numbers else ()
