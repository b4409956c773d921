"""`manyhands report PATH…`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer
from rich.console import Console

from manyhands.reports.comparison.load_comparisons import gather
from manyhands.reports.page import write_page_of
from manyhands.reports.render.table import table

if TYPE_CHECKING:
    from pathlib import Path


def report(paths: list[Path], output: Path | None, target: str | None, price: float | None) -> None:
    """Print the results of comparisons, and write the report page.

    Without the extra `report` no page is written, with a message; if `output` is given, that is an
    error.
    """
    try:
        sources = gather(paths, target=target, price=price)
    except (OSError, ValueError) as error:
        typer.echo(f"manyhands: {error}", err=True)
        raise typer.Exit(2) from None
    console = Console()
    for source in sources:
        console.print(table(source.comparison))
    first = paths[0] if paths[0].is_dir() else paths[0].parent
    page = output or first / "report.html"
    try:
        write_page_of(sources, page)
    except (ModuleNotFoundError, OSError) as error:
        typer.echo(f"manyhands: {error}", err=True)
        raise typer.Exit(1 if output else 0) from None
    typer.echo(f"{page}: open it in a browser")
