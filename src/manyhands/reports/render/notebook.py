"""A run and a comparison as they are shown below a notebook's cell."""

from html import escape
from pathlib import Path

from manyhands.reports.render.summary import headline, summary_rows
from manyhands.trace import Trace

_CELL = "text-align:left;vertical-align:top"
_TIED = "\N{NO-BREAK SPACE}"
_HEIGHT = 720
"""Pixels of a page below a cell; it can be scrolled."""


def run_html(trace: Trace) -> str:
    """The summary of a run as a table."""
    rows = "".join(
        f'<tr><th style="{_CELL}">{escape(label)}</th>'
        f'<td style="{_CELL}">{escape(words.replace(_TIED, " "))}</td></tr>'
        for label, words in summary_rows(trace)
        if words
    )
    return f"<table><caption>{escape(headline(trace))}</caption><tbody>{rows}</tbody></table>"


def page_html(text: str, page: Path | None) -> str:
    """A text, and below it a page in a frame of its own.

    The page's code can reach neither the notebook nor its server: the frame is sandboxed.
    """
    shown = f'<pre style="line-height:1.2">{escape(text)}</pre>'
    if page is None or not page.is_file():
        return shown
    content = escape(page.read_text("utf-8"), quote=True)
    return (
        f'{shown}<iframe sandbox="allow-scripts" width="100%" height="{_HEIGHT}" '
        f'style="border:1px solid #8884" srcdoc="{content}"></iframe>'
    )
