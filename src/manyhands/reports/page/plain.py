"""A page without scripts: a title, a sentence, a command, and sections."""

from importlib.resources import files
from pathlib import Path
from typing import Final

from manyhands.reports.page.markup import Markup, element

_STYLE: Final = "main > section { margin-top: 1.8rem; } header > pre { margin: 1.2rem 0 0; }"
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
"""Nothing is loaded from anywhere."""


def write_plain_page(
    path: Path,
    title: str,
    headings: tuple[str, str, str],
    command: str,
    sections: list[Markup],
    style: str = "",
) -> Path:
    """Write a page into one file, which needs no other; return its path.

    Args:
        path: the file.
        title: the title of the window.
        headings: what kind of page it is, what it says, and what that rests on.
        command: a command to copy; empty for none.
        sections: the rest.
        style: CSS in addition to that of all pages.
    """
    css = files("manyhands.reports.page").joinpath("page.css").read_text(encoding="utf-8")
    kind, says, rests = headings
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", Markup(css + _STYLE + style)),
    )
    header = element(
        "header",
        element("p", kind, class_="kicker"),
        element("h1", says),
        element("p", rests, class_="subtitle"),
        *([element("pre", element("code", command))] if command else []),
    )
    body = element("body", header, element("main", *sections))
    page = element("html", head, body, lang="en")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"<!doctype html>\n{page}\n", encoding="utf-8")
    return path
