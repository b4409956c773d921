"""`manyhands check`: does a job train the same on several workers as on one?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from manyhands.cli.exit import leave
from manyhands.cli.script_job import enter, load_job
from manyhands.failure import RunFailed
from manyhands.lab.check import check as check_job
from manyhands.reports.formatting import plural
from manyhands.verbs.progress import shown

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from manyhands.lab.check import Checked
    from manyhands.lab.check.check import ParameterDifference


def check(script: Path, arguments: list[str], options: Mapping[str, Any]) -> None:
    """Execute the script up to its main guard, and compare its job on one worker and on several.

    The exit code is 1 if they differ.
    """
    enter(script, arguments)
    name, job, _ = load_job(script, options["job"])
    steps = ["loading"]
    try:
        with shown(lambda: f"checking: {steps[-1]}"):
            found = check_job(
                script,
                name,
                job,
                arguments,
                strategy=options["strategy"] or "allreduce()",
                workers=options["workers"] or 2,
                steps=options["steps"],
                note=steps.append,
            )
    except (RunFailed, RuntimeError, TypeError, ValueError) as error:
        leave(f"manyhands: {error}", 1)
    typer.echo(words(found))
    if not found.is_equal:
        raise typer.Exit(1)


def words(found: Checked) -> str:
    """The answer."""
    several = f"{found.strategy} on {found.workers} worker{plural(found.workers)}"
    after = f"after {found.steps} step{plural(found.steps)} in {found.dtype}"
    lines = []
    if found.alone is not None:
        lines.append(f"one worker does not train the same twice: {_apart(found.alone)} {after}")
    if not found.waits:
        lines.append(
            f"{several} does not make the steps of one worker by its nature, so their parameters "
            "are not compared"
        )
    elif found.apart is not None:
        lines.append(f"{several} does not train as one worker does, from step {found.since} on:")
        lines.append(f"  {_apart(found.apart)} {after}")
    else:
        lines.append(
            f"{several} trains as one worker does: {after} all parameters are equal to "
            f"{found.largest:.1e}"
        )
    if found.rounded:
        names = ", ".join(found.rounded[:3]) + (" …" if len(found.rounded) > 3 else "")
        lines.append(
            f"{len(found.rounded)} more ({names}) differ only as far as rounding moves them on one "
            "worker, too: their gradients are zero but for it, and the optimizer divides by their "
            "size"
        )
    if found.reasons:
        lines += ["likely reasons:" if found.apart or found.alone else "what may differ:"]
        lines += [f"  - {reason}" for reason in found.reasons]
    elif found.apart is not None or found.alone is not None:
        lines.append("no reason was found in the job; please report it, with the script")
    if found.speeds is not None:
        one, all_ = found.speeds
        lines.append(
            f"speed in these few steps: {one:.0f} samples/s on one worker, {all_:.0f} on "
            f"{found.workers}; manyhands scaling measures it"
        )
    return "\n".join(lines)


def _apart(apart: ParameterDifference) -> str:
    of = f"{apart.differing} of {apart.parameters} parameter{plural(apart.parameters)}"
    return f"{of} differ, {apart.parameter} the most, by {apart.largest:.1e},"
