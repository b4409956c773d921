"""Check a built site: `python -m docs.check_site build/site`.

Every link leads to a file of the site and to an anchor in it, nothing is loaded from the network,
and everything public is in the reference.
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from docs.site_extensions.command_reference import subcommands
from docs.site_extensions.public_names import public_names
from sphinx.util.inventory import InventoryFile

LOADS = {"script": "src", "img": "src", "source": "src", "iframe": "src", "link": "href"}
"""What a browser fetches by itself, and the attribute that says from where."""

FETCHED = re.compile(r"(?:@import|url\()\s*[\"']?(https?:[^\"')]+)")
"""What a style sheet loads from the network."""


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called for every element."""
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        target = found.get(LOADS.get(tag, "href"))
        if target is None:
            return
        (self.loaded if tag in LOADS and found.get("rel") != "canonical" else self.links).append(
            target
        )


def broken_links(site: Path) -> list[str]:
    """Links to files or anchors that are not in the site, and what is loaded from elsewhere."""
    pages = {path.resolve(): Page(path.read_text("utf-8")) for path in site.rglob("*.html")}
    broken = []
    for path, page in pages.items():
        name = path.relative_to(site.resolve())
        for link in page.loaded + page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in page.loaded and parts.scheme != "data":
                    broken.append(f"{name} loads {link}")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                broken.append(f"{name}: there is no {link}")
            elif target in pages and parts.fragment:
                known = unquote(parts.fragment) in pages[target].anchors
                broken += [] if known else [f"{name}: there is no anchor {link}"]
    for path in site.rglob("*.css"):
        fetched = FETCHED.findall(path.read_text("utf-8"))
        broken += [f"{path.relative_to(site)} loads {link}" for link in fetched]
    return broken


def missing_names(site: Path) -> list[str]:
    """Public names and subcommands that the reference does not explain."""
    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="").data
    explained = {
        name for kind, entries in inventory.items() if kind.startswith("py:") for name in entries
    }
    missing = sorted(public_names().keys() - explained)
    options = inventory["std:cmdoption"]
    for verb, command in subcommands().items():
        for parameter in command.params:
            if parameter.param_type_name == "option" and not parameter.hidden:
                missing += [
                    f"manyhands {verb} {name}"
                    for name in parameter.opts
                    if f"manyhands-{verb}.{name}" not in options
                ]
    return missing


def main(folder: str) -> int:
    """Print what is wrong; the exit code."""
    site = Path(folder)
    if not (site / "index.html").is_file():
        print(f"there is no site in {folder}: sphinx-build -b html docs {folder}")
        return 2
    wrong = broken_links(site) + [f"not in the reference: {name}" for name in missing_names(site)]
    print("\n".join(wrong) or f"{len([*site.rglob('*.html')])} pages, all links lead somewhere")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
