"""`manyhands search`: parallel trials of a script's job with free parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from manyhands.cli.exit import leave
from manyhands.cli.script_job import enter, load_script
from manyhands.cluster import Cluster
from manyhands.failure import Refused
from manyhands.lab.design import Budget, Script, VirtualConditions
from manyhands.lab.search import SearchDesign, carry_out
from manyhands.lab.search.methods import METHODS
from manyhands.lab.search.page import against_constant, verdict
from manyhands.lab.search.trial import short
from manyhands.script.loading import at

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from manyhands.lab.search import Searched

_MOST: Final = 10
"""Trials in the table."""
_WIDTH: Final = 100
_CONDITIONS: Final = ("times", "bandwidth", "latency", "cores")


def search(script: Path, arguments: list[str], options: Mapping[str, Any]) -> None:
    """Make the search that the options describe; print its best trials and how to use them."""
    enter(script, arguments)
    name, module = load_script(script, options["job"])
    try:
        found = carry_out(
            _design(script, arguments, options, name, at(module, name)), options["output"]
        )
    except (TypeError, ValueError, Refused) as error:
        leave(f"manyhands: {error}")
    except KeyboardInterrupt:
        output = options["output"]
        kept = f"; continue with the same command and --output {output}" if output else ""
        leave(f"manyhands: interrupted; all processes are ended{kept}", 130)
    _show(found)
    if found.best is None:
        raise typer.Exit(1)


def _design(
    script: Path, arguments: list[str], options: Mapping[str, Any], name: str, source: Any
) -> SearchDesign:
    asked = {one: options[one] for one in _CONDITIONS}
    for one, value in asked.items():
        if value is not None and not options["virtual"]:
            raise ValueError(f"--{one} describes a virtual cluster: add --virtual")
    budget = ("epochs", "samples", "seconds", "evaluate_every")
    return SearchDesign(
        source=source,
        method=METHODS.read(options["method"]),
        trials=options["trials"],
        workers=options["workers"]
        or max(options["trial_workers"], Cluster.local().default_workers()),
        trial_workers=options["trial_workers"],
        strategy=options["strategy"],
        metric=options["metric"],
        seed=options["seed"],
        budget=Budget(**{one: options[one] for one in budget}),
        checkpoint=options["checkpoint"],
        script=Script(path=script.resolve(), job=name, arguments=tuple(arguments)),
        virtual=VirtualConditions(**asked) if options["virtual"] else None,
    )


def _show(found: Searched) -> None:
    table = Table(box=None, pad_edge=False)
    names = [*found.results[0].trial.values]
    for column in ("trial", found.metric, "samples", *names):
        table.add_column(column, justify="right")
    table.add_column("came by")
    order = [one for one in found.ranking if one.score is not None]
    for one in order[:_MOST]:
        table.add_row(
            str(one.trial.number),
            short(one.score),
            f"{one.samples:,}",
            *(short(value) for value in one.trial.values.values()),
            one.trial.reason,
        )
    console = Console()
    (console if console.is_terminal else Console(width=_WIDTH)).print(table)
    failed = [one for one in found.results if one.score is None]
    if failed:
        typer.echo(
            f"{len(failed)} trials failed; trial {failed[0].trial.number}: {failed[0].failure}"
        )
    typer.echo(f"\n{verdict(found)}")
    for step in found.schedule if len(found.schedule) > 1 else ():
        typer.echo(f"  until {step.until or 0:>9,} samples: {step.words}")
    words = against_constant(found)
    if words:
        typer.echo(words)
    if found.command:
        typer.echo(f"    {found.command}")
    if found.best is not None:
        typer.echo(f"its trained model: {found.run.folder}")
    typer.echo(f"report: {found.report}")
