"""`manyhands calibrate` and `manyhands plan`: what a job takes here, and which strategy to use."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

from manyhands.cli.exit import leave
from manyhands.cli.script_job import enter, load_job
from manyhands.failure import RunFailed
from manyhands.lab.calibration import measure, read_calibration
from manyhands.lab.planning import plan as make_plan
from manyhands.pacing import Pace
from manyhands.verbs.progress import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from manyhands.job import Job
    from manyhands.lab.calibration import Calibration
    from manyhands.lab.planning import Plan

_WIDTH = 100
_MOST = 5
"""Reasons that are shown of strategies that were left out."""


def calibrate(script: Path, arguments: list[str], options: Mapping[str, Any]) -> None:
    """Measure the job of a script on this machine, and store what was found."""
    enter(script, arguments)
    name, job, _ = load_job(script, options["job"])
    found = _measured(script, arguments, name, job, options["seconds"])
    path = found.write(options["output"] or Path("calibration.json"))
    _show_calibration(found)
    typer.echo(f"stored in {path}")


def plan(script: Path, arguments: list[str], options: Mapping[str, Any]) -> None:
    """Rank strategies for the job of a script, and print the command of the best one."""
    enter(script, arguments)
    name, job, _ = load_job(script, options["job"])
    try:
        if options["calibration"] is not None:
            known = read_calibration(options["calibration"])
        else:
            known = _measured(script, arguments, name, job, options["seconds"])
        standing = ["reading the job"]
        with shown(lambda: "" if options["json"] else f"timing {standing[-1]}"):
            found = make_plan(
                job,
                options["cluster"],
                known,
                strategies=options["strategy"],
                workers=options["workers"],
                slow=tuple(map(Pace.read, options["slow"] or ())),
                tell=standing.append,
            )
    except (TypeError, ValueError, RunFailed) as error:
        leave(f"manyhands: {error}")
    if options["json"]:
        typer.echo(json.dumps(_result(found), indent=2))
    else:
        _show(found, script, options)


def _measured(
    script: Path, arguments: list[str], name: str, job: Job, seconds: float
) -> Calibration:
    standing = ["the job"]
    try:
        with shown(lambda: f"measuring {standing[-1]}"):
            return measure(
                job, [str(script), *arguments], name, seconds=seconds, tell=standing.append
            )
    except (TypeError, ValueError, RunFailed) as error:
        leave(f"manyhands: {error}")


def _result(found: Plan) -> dict[str, Any]:
    return {
        "verdict": found.verdict,
        "cluster": found.cluster,
        "ranking": [asdict(one) for one in found.ranking],
        "left_out": [asdict(one) for one in found.left_out],
        "seconds": found.seconds,
    }


def _show_calibration(found: Calibration) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("samples", "ms per batch", "spread", "ms of loading", "samples/s"):
        table.add_column(column, justify="right")
    for one in found.compute:
        table.add_row(
            f"{one.samples:,}",
            f"{1e3 * one.seconds:.2f}",
            f"{100 * one.cv:.0f} %",
            f"{1e3 * one.data:.2f}",
            f"{one.samples / (one.seconds + one.data):,.0f}",
        )
    _console().print(table)
    typer.echo(
        f"all cores at once: {found.sharing:.2f} times as long; allreduce of two workers "
        f"{1e3 * found.collective:.2f} ms; an update to a server and back "
        f"{1e3 * found.exchange:.2f} ms"
    )


def _show(found: Plan, script: Path, options: Mapping[str, Any]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("strategy")
    for column in ("workers", "samples/s", "from", "to"):
        table.add_column(column, justify="right")
    table.add_column("limited by")
    for one in found.ranking:
        numbers = (f"{value:,.0f}" for value in (one.rate, one.low, one.high))
        table.add_row(one.strategy, str(one.workers), *numbers, one.limit)
    _console().print(table)
    for left in found.left_out[:_MOST]:
        typer.echo(f"left out: {left.strategy}: {left.why}")
    if len(found.left_out) > _MOST:
        typer.echo(f"left out: {len(found.left_out) - _MOST} more (--json shows all)")
    typer.echo(f"\n{found.verdict}")
    if found.ranking:
        first = found.best[0]
        command = f"manyhands train {script} --strategy '{first.strategy}'"
        typer.echo(f"    {command} --workers {first.workers}")
    cluster = options["cluster"] or "this machine"
    typer.echo(
        f"Predicted for {cluster}, from times measured on {found.calibration.machine.cpu} "
        f"({found.calibration.date[:10]}) and a simulated network: speed alone, not how well it "
        "learns. Strategies that wait less may need more samples: compare them with `manyhands "
        "compare --virtual`."
    )


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH)
