"""`manyhands export PATH…`: tables and charts of comparisons as files for other programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from manyhands.cli.exit import leave
from manyhands.reports.comparison.load_comparisons import gather
from manyhands.reports.comparison.tables import TABLES
from manyhands.reports.publication import FORMATS as CHARTS
from manyhands.reports.publication import write_charts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from manyhands.reports import Comparison

_TABLES = ("csv", "jsonl")
_ALL = (*_TABLES, *CHARTS)


def export(
    paths: list[Path],
    output: Path | None,
    formats: str | None,
) -> None:
    """Write tables and charts of comparisons or runs to a folder.

    Without the extra `figures` no charts are drawn, with a message; if they were asked for, that is
    an error.
    """
    try:
        chosen = _read(formats)
        sources = gather(paths)
    except (OSError, ValueError) as error:
        leave(f"manyhands: {error}")
    first = paths[0] if paths[0].is_dir() else paths[0].parent
    folder = output or first / "export"
    try:
        for number, source in enumerate(sources):
            into = folder / str(number) if len(sources) > 1 else folder
            _write(source.comparison, into, chosen)
    except ModuleNotFoundError as error:
        typer.echo(f"manyhands: {error}", err=True)
        raise typer.Exit(1 if formats else 0) from None
    except OSError as error:
        leave(f"manyhands: {error}", 1)


def _read(formats: str | None) -> tuple[str, ...]:
    """Parse formats separated by commas; all of them by default."""
    if formats is None:
        return _ALL
    chosen = tuple(dict.fromkeys(part.strip().lower() for part in formats.split(",")))
    for one in chosen:
        if one not in _ALL:
            raise ValueError(f"there is no format {one!r}: use {', '.join(_ALL)}")
    return chosen


def _write(comparison: Comparison, folder: Path, formats: Sequence[str]) -> None:
    if "csv" in formats:
        for table in TABLES:
            typer.echo(comparison.to_csv(folder / f"{table}.csv", table))
    if "jsonl" in formats:
        for table in TABLES:
            typer.echo(comparison.to_jsonl(folder / f"{table}.jsonl", table))
    drawn = [kind for kind in CHARTS if kind in formats]
    if drawn:
        for path in write_charts(comparison, folder, drawn):
            typer.echo(path)
