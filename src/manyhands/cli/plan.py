"""`manyhands calibrate` and `manyhands plan`: what a job takes here, and which strategy to use."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

from manyhands.cli.exit import leave
from manyhands.cli.script_job import enter, load_job
from manyhands.cluster import Cluster
from manyhands.failure import RunFailed
from manyhands.lab.calibration import measure, read_calibration
from manyhands.lab.calibration.assumed import assume
from manyhands.lab.calibration.several_hosts import HostsFailed, measure_hosts, places
from manyhands.lab.doctor.calibrated_hosts import compared, mbits
from manyhands.lab.planning import plan as make_plan
from manyhands.lab.planning.commands import PlannedJob, command_of
from manyhands.lab.planning.objective import Extras
from manyhands.lab.planning.page import (
    RANGE_WORDS,
    failure_words,
    goodput_words,
    is_priced,
    limit_words,
    price_words,
    tried_words,
    write_page,
)
from manyhands.pacing import Pace
from manyhands.reports.formatting import folded
from manyhands.verbs.progress import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from manyhands.job import Job
    from manyhands.lab.calibration import CalibratedLink, Calibration
    from manyhands.lab.planning import Plan, PlannedStrategy

_WIDTH = 100
_NAME = 27
"""Letters in a line of a strategy's name, if there is no room for more."""
_EXTRAS = ("failures", "checkpoint", "price", "start_up", "by")
"""Options about failures and prices."""
_MOST = 5
"""Reasons that are shown of strategies that were left out."""


def calibrate(script: Path, arguments: list[str], options: Mapping[str, Any]) -> None:
    """Measure the job of a script on this machine, and store what was found."""
    enter(script, arguments)
    name, job, _ = load_job(script, options["job"])
    file = options["output"] or Path("calibration.json")
    try:
        found = _measured(script, arguments, name, job, options)
    except HostsFailed as error:
        path = error.measured.write(file)
        leave(f"manyhands: {error}; what was measured on this host is stored in {path}", 1)
    except (TypeError, ValueError, OSError, RunFailed) as error:
        leave(f"manyhands: {error}")
    path = found.write(file)
    _show_calibration(found)
    typer.echo(f"stored in {path}")


def plan(script: Path, arguments: list[str], options: Mapping[str, Any]) -> None:
    """Rank strategies for the job of a script, and print the command of the best one."""
    enter(script, arguments)
    name, job, _ = load_job(script, options["job"])
    try:
        if options["global_batch"] is not None:
            job = replace(job, global_batch=options["global_batch"])
        # Read before anything is measured, which takes a minute.
        where = None if options["cluster"] is None else Cluster.parse(options["cluster"])
        slow = tuple(map(Pace.read, options["slow"] or ()))
        extras = {name: options[name] for name in _EXTRAS}
        Extras.read(**extras)
        if options["assume"] is not None:
            known = assume(job, options["assume"])
        elif options["calibration"] is not None:
            known = read_calibration(options["calibration"])
        else:
            known = _measured(script, arguments, name, job, options)
        standing = ["reading the job"]
        with shown(lambda: "" if options["json"] else f"timing {standing[-1]}"):
            found = make_plan(
                job,
                where,
                known,
                strategies=options["strategy"],
                workers=options["workers"],
                slow=slow,
                coding=options["coding"],
                target=options["target"],
                budget=options["budget"],
                **extras,
                rules=options["rules"],
                tell=standing.append,
            )
    except (TypeError, ValueError, OSError, RunFailed) as error:
        leave(f"manyhands: {error}")
    about = PlannedJob(str(script), arguments, options["job"], options["global_batch"])
    command = "" if found.choice is None else command_of(found, found.choice, about)
    if options["output"] is not None:
        write_page(found, options["output"], command)
    if options["json"]:
        typer.echo(json.dumps(_result(found, about), indent=2))
        return
    _show(found, command, options)
    if options["output"] is not None:
        typer.echo(f"report: {options['output']}")


def _measured(
    script: Path, arguments: list[str], name: str, job: Job, options: Mapping[str, Any]
) -> Calibration:
    """What the job takes on this machine, and on the others that were named."""
    words, seconds, standing = [str(script), *arguments], options["seconds"], ["the job"]
    where = places(options["hosts"], options["listen"], options["key_file"])
    with shown(lambda: f"measuring {standing[-1]}"):
        found = measure(job, words, name, seconds=seconds, tell=standing.append)
    if not where:
        return found
    return measure_hosts(found, job, words, name, where, seconds=seconds)


def _result(found: Plan, about: PlannedJob) -> dict[str, Any]:
    return {
        "verdict": found.verdict,
        "cluster": found.cluster,
        "target": found.target,
        "by": found.by,
        "failures": None if found.failures is None else asdict(found.failures),
        "checkpoint": found.checkpoint,
        "samples": found.samples,
        "ranking": [
            asdict(one) | {"command": command_of(found, one, about)} for one in found.ranking
        ],
        "left_out": [asdict(one) for one in found.left_out],
        "notes": list(found.notes),
        "assumptions": [asdict(one) for one in found.assumptions],
        "cautions": list(found.cautions),
        "advice": found.advice,
        "rules": [asdict(one) for one in found.rules],
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
    if found.hosts:
        _show_hosts(found)
    for words in found.doubts:
        typer.echo(f"note: {words}")


def _show_hosts(found: Calibration) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("from \\ to")
    names = [host.name for host in found.hosts]
    for name in names:
        table.add_column(name, justify="right")
    between = {(link.sender, link.receiver): link for link in found.links}
    for one in names:
        links = (between.get((one, other)) for other in names)
        table.add_row(one, *("" if link is None else _link(link) for link in links))
    _console().print(table)
    times = ", ".join(f"{host.name} {1e3 * host.seconds:.2f} ms" for host in found.hosts)
    typer.echo(f"{found.hosts[0].samples:,} samples on each worker: {times}")
    for took in found.sums:
        words = f"allreduce of {took.nbytes:,} bytes over all hosts"
        typer.echo(f"{words}: {1e3 * took.seconds:.2f} ms")
    for finding in compared(found):
        if finding.severity != "ok":
            typer.echo(str(finding))


def _link(link: CalibratedLink) -> str:
    return f"{mbits(link.bandwidth)}, {1e3 * link.latency:.2f} ms"


def _show(found: Plan, command: str, options: Mapping[str, Any]) -> None:
    timed = any(one.to_target is not None for one in found.ranking)
    console = _console()
    console.print(_ranking(found, console.width, timed=timed))
    for words in (failure_words(found), price_words(found), *found.notes):
        if words:
            typer.echo(words)
    for left in found.left_out[:_MOST]:
        typer.echo(f"left out: {left.strategy}: {left.why}")
    if len(found.left_out) > _MOST:
        typer.echo(f"left out: {len(found.left_out) - _MOST} more (--json shows all)")
    if found.rules:
        typer.echo("\nrules of thumb, for this job:")
    for rule in found.rules:
        typer.echo(f"  {rule.holds}: {rule.text}. {rule.figures}.")
    typer.echo(f"\n{found.verdict}")
    if found.advice:
        typer.echo(f"a larger batch: {found.advice}")
    for caution in found.cautions:
        typer.echo(f"caution: {caution}")
    if command:
        typer.echo(f"    {command}")
    cluster = options["cluster"] or found.cluster
    words = f"Predicted for {cluster}, from {found.calibration.source} and a simulated network"
    if timed:
        words += "; how well a strategy learns is from virtual runs with real gradients."
    else:
        words += (
            ": speed alone, not how well it learns. Strategies that wait less may need more "
            "samples: add --target."
        )
    typer.echo(words)
    if found.assumptions:
        typer.echo(f"Assumed: {'; '.join(one.words for one in found.assumptions)}.")
        typer.echo(tried_words(found.assumptions))
    typer.echo(RANGE_WORDS)


def _ranking(found: Plan, width: int, *, timed: bool) -> Table:
    table = Table(box=None, pad_edge=False)
    priced = is_priced(found)
    is_crowded = timed or priced or found.failures is not None
    # A third of a wide terminal, so that what limits a strategy has room, too.
    longest = _NAME if is_crowded else max(_NAME, width // 3)
    names = ["\n".join(folded(one.strategy, longest)) for one in found.ranking]
    table.add_column("strategy", no_wrap=True)
    columns = ["workers", *(["s to target", "from", "to", "runs"] if timed else [])]
    columns += ["samples/s", *([] if timed else ["from", "to"])]
    columns += [*(["goodput", "a loss"] if found.failures else []), *(["price"] if priced else [])]
    for column in columns:
        table.add_column(column, justify="right")
    table.add_column("limited by")
    for name, one in zip(names, found.ranking, strict=True):
        figures = _figures(one, timed, priced)
        table.add_row(name, str(one.workers), *figures, limit_words(one))
    return table


def _figures(one: PlannedStrategy, timed: bool, priced: bool) -> list[str]:
    speeds = [f"{value:,.0f}" for value in (one.rate, one.least, one.most)]
    more = [goodput_words(one), one.goodput.short] if one.goodput is not None else []
    more += ["" if one.price is None else f"{one.price:.3g}"] if priced else []
    if not timed:
        return [*speeds, *more]
    time = one.to_target
    each = (None, None, None) if time is None else (time.seconds, one.least, one.most)
    shown = ["" if value is None else f"{value:,.3g}" for value in each]
    return [*shown, "" if time is None else time.share, speeds[0], *more]


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH)
