"""A comparison as one HTML file: verdict, table, charts; for offline, for print, for a phone."""

from collections.abc import Sequence
from pathlib import Path

from manyhands.reports.comparison.load_comparisons import Source
from manyhands.reports.comparison.results import Comparison, RunResult
from manyhands.reports.page.document import Traces, document
from manyhands.trace import Trace, read

__all__ = ["write_page", "write_page_of"]


def write_page(comparison: Comparison, path: Path | str, folder: Path | str | None = None) -> None:
    """Write a comparison's page to that file.

    Needs the extra `report`. The runs' folders, for the timelines, are relative to `folder`, by
    default the one that the page is written to; runs that are not there any more have none.
    """
    path = Path(path)
    write_page_of([Source(comparison, path.parent if folder is None else Path(folder))], path)


def write_page_of(sources: Sequence[Source], path: Path | str) -> None:
    """Write several comparisons to one page, each by itself."""
    path = Path(path)
    text = document([(each.comparison, _traces(each.folder)) for each in sources], _plotly())
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.part")
    partial.write_text(text, "utf-8")
    partial.replace(path)


def _traces(folder: Path) -> Traces:
    """Finds the traces of runs below a folder."""

    def find(run: RunResult) -> Trace | None:
        try:
            return read(folder / run.folder)
        except (OSError, ValueError):
            return None

    return find


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs  # noqa: PLC0415 - an optional extra
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "the page's charts are drawn by Plotly, which is not installed: "
            "pip install 'manyhands[report]'"
        ) from error
    text: str = get_plotlyjs()
    return text
