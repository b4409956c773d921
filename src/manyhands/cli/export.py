"""`manyhands export PATH…`: tables and charts of comparisons as files for other programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from manyhands.cli.exit import leave
from manyhands.files.checkpoints import CHECKPOINTS, latest
from manyhands.files.sharded_weights import write_sharded
from manyhands.files.tensor_format import MODEL
from manyhands.files.weights import open_weights
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
_WEIGHTS = "weights"


def export(
    paths: list[Path],
    output: Path | None,
    formats: str | None,
) -> None:
    """Write tables and charts of comparisons or runs, or the model of a run, to a folder.

    Without the extra `figures` no charts are drawn, with a message; if they were asked for, that is
    an error.
    """
    try:
        chosen = _read(formats)
        if _WEIGHTS in chosen:
            _write_weights(paths, output)
            return
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
        if one not in (*_ALL, _WEIGHTS):
            raise ValueError(f"there is no format {one!r}: use {', '.join((*_ALL, _WEIGHTS))}")
    if _WEIGHTS in chosen and len(chosen) > 1:
        raise ValueError(f"{_WEIGHTS} is the model of one run: export it by itself")
    return chosen


def _write_weights(paths: list[Path], output: Path | None) -> None:
    """Write the model of a run, or of its last checkpoint if it has not finished."""
    if len(paths) > 1:
        raise ValueError(f"--format {_WEIGHTS} takes one run, got {len(paths)}")
    (run,) = paths
    unfinished = run.is_dir() and not (run / MODEL).exists() and (run / CHECKPOINTS).is_dir()
    weights = open_weights(latest(run).folder if unfinished else run)
    for path in write_sharded(weights, output or (run if run.is_dir() else run.parent) / "export"):
        typer.echo(path)


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
