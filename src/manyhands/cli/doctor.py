"""`manyhands doctor`: what is wrong on this machine, before a run."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from manyhands.lab.doctor import examine
from manyhands.reports.formatting import plural

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from manyhands.lab.doctor import Examination

_COLOURS = {"error": "red", "warning": "yellow", "ok": "green"}


def doctor(script: Path | None, arguments: list[str], options: Mapping[str, Any]) -> None:
    """Examine the machine and print what was found; the exit code is 1 if there is an error."""
    asked = dict(options)
    as_json, everything = asked.pop("json"), asked.pop("all")
    found = examine(script, arguments, **asked)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(_values(found))).decode())
    else:
        show(found, Console(highlight=False, soft_wrap=False), everything=everything)
    if found.errors:
        raise typer.Exit(1)


def show(found: Examination, console: Console, *, everything: bool = False) -> None:
    """Print the findings by theme; of those that are right only their number, by default."""
    for theme, findings in found.findings.items():
        shown = [one for one in findings if everything or one.severity != "ok"]
        right = len(findings) - len(shown)
        heading = Text(theme, style="bold")
        if right:
            heading.append(f"  {right} right", style="not bold green")
        console.print(heading)
        table = Table.grid(padding=(0, 1))
        for one in shown:
            words = Text(f"{one.name}: {one.found}")
            if one.advice:
                words.append(f"\n→ {one.advice}")
            table.add_row("  " + one.severity, words, style=_COLOURS[one.severity])
        if shown:
            console.print(table)
    console.print(outcome(found))


def outcome(found: Examination) -> str:
    """The result in one line."""
    errors, warnings = len(found.errors), len(found.warnings)
    checked = f"for {found.plan}"
    if not errors and not warnings:
        return f"nothing wrong was found {checked}"
    counts = f"{errors} error{plural(errors)}, {warnings} warning{plural(warnings)}"
    more = "the run would fail" if errors else "the run can be started"
    return f"{counts} {checked}: {more}"


def _values(found: Examination) -> dict[str, Any]:
    return {
        "plan": found.plan,
        "errors": len(found.errors),
        "warnings": len(found.warnings),
        "findings": [
            {"theme": theme, **asdict(one)}
            for theme, all_ in found.findings.items()
            for one in all_
        ],
    }
