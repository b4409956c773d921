"""Charts of a comparison: their content, and files for publication (extra `figures`)."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from manyhands.reports.comparison.chart_content import ChartContent, charts_of
from manyhands.reports.comparison.measure_content import measure_contents
from manyhands.reports.comparison.results import Comparison
from manyhands.reports.comparison.standings import Field, fields, ordered
from manyhands.reports.comparison.sweep_content import sweep_contents
from manyhands.reports.comparison.sweeps import sweeps
from manyhands.reports.formatting import plural
from manyhands.reports.page.palette import looks
from manyhands.reports.publication.drawing import draw

__all__ = ["FORMATS", "write_charts"]

FORMATS: Final = ("svg", "pdf")


def write_charts(
    comparison: Comparison, folder: Path | str, formats: Sequence[str] = FORMATS
) -> list[Path]:
    """Draw every chart of the report to files in a folder; needs the extra `figures`.

    A comparison of several numbers of workers has charts of each of them; their files' names say
    which, except for the largest.

    Args:
        comparison: the results.
        folder: the folder to write to.
        formats: "svg", "pdf" or both.

    Returns:
        The files.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
    """
    folder = Path(folder)
    look = looks(ordered(comparison))
    found = []
    for name, heading, content in _named(comparison):
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{name}.{kind}" for kind in formats]
        draw(content, look, heading, paths)
        found += paths
    for sweep in sweeps(comparison):
        for chart in sweep_contents(sweep):
            folder.mkdir(parents=True, exist_ok=True)
            paths = [folder / f"{_file(f'{sweep.kind}-{chart.name}')}.{kind}" for kind in formats]
            draw(chart, looks(line.strategy for line in chart.lines), sweep.kind, paths)
            found += paths
    return found


def _named(comparison: Comparison) -> Iterator[tuple[str, str, ChartContent]]:
    """Every chart with the name of its file and the words that follow its title."""
    of_kinds: dict[str, list[Field]] = {}
    for field in fields(comparison):
        of_kinds.setdefault(field.kind, []).append(field)
    for kind, of_kind in of_kinds.items():
        before = f"{kind}-" if len(of_kinds) > 1 else ""
        for number, field in enumerate(of_kind):
            count = f"{field.workers} worker{plural(field.workers)}"
            shown = (field,) if number else tuple(of_kind)
            for content in (*charts_of(shown), *measure_contents(field)):
                after = f"-{count.replace(' ', '-')}" if number else ""
                name = _file(f"{before}{content.name}{after}")
                heading = kind if content.name == "scaling" else f"{kind}, {count}"
                yield name, heading, content


def _file(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name)
