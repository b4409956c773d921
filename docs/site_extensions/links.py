"""Links of pages to files that are no pages, and of code to the reference.

Pages link to files of the repository, as `../examples/mnist.py`, so that the links work where the
repository is read. In the site a text file is a page of its own, with its code highlighted, and
the README, the guide for contributors and the changelog are the pages that include them. Files of
other kinds are copied.

Code such as `mh.train` in a text leads to its place in the reference.
"""

from __future__ import annotations

import os
import re
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docs.site_extensions.public_names import public_names
from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform
from sphinx.transforms.post_transforms import SphinxPostTransform

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment
    from sphinx.util.typing import ExtensionMetadata

INCLUDED = {"README.md": "index", "CONTRIBUTING.md": "contributing", "CHANGELOG.md": "changelog"}
"""Files that a page includes or replaces, and the page."""
LANGUAGES = {".py": "python", ".json": "json", ".toml": "toml", ".sh": "bash"}
"""The kinds of files that become pages."""
LARGEST = 200_000
"""Bytes of a file that becomes a page; larger ones are copied."""


class LinkFiles(SphinxTransform):
    """Links to files of the repository lead to their pages."""

    default_priority = 5

    def apply(self, **_: Any) -> None:
        """Replace what MyST reads as a download, or as a page that is not there."""
        root = Path(self.env.srcdir).parent
        folder = Path(self.env.doc2path(self.env.docname)).parent
        for node in list(self.document.findall(addnodes.pending_xref)):
            target = Path(self.env.srcdir) / str(node.get("reftarget"))
            if node.get("refdomain") == "doc" and target.is_relative_to(root):
                page = INCLUDED.get(f"{target.relative_to(root)}.md")
                if page is not None:
                    node["reftarget"] = page
                else:
                    self._download(node, target.with_suffix(".ipynb"), folder)
        for node in list(self.document.findall(addnodes.download_reference)):
            self._link(node, (folder / str(node["reftarget"])).resolve(), root)

    def _download(self, node: nodes.Element, notebook: Path, folder: Path) -> None:
        """A notebook is copied as it is, to be opened where it runs."""
        if notebook.is_file():
            target = os.path.relpath(notebook, folder)
            about = {"refdoc": self.env.docname, "reftarget": target}
            node.replace_self(addnodes.download_reference("", "", *node.children, **about))

    def _link(self, node: nodes.Element, file: Path, root: Path) -> None:
        known = file.is_file() and file.is_relative_to(root)
        if known and file.suffix in LANGUAGES and file.stat().st_size <= LARGEST:
            name = file.relative_to(root).as_posix()
            linked_files(self.env).setdefault(self.env.docname, set()).add(name)
            uri = f"{'../' * self.env.docname.count('/')}files/{name}.html"
            node.replace_self(nodes.reference("", "", *node.children, refuri=uri))


def linked_files(env: BuildEnvironment) -> dict[str, set[str]]:
    """The files that become pages, by the page that links to them."""
    if not hasattr(env, "manyhands_files"):
        env.manyhands_files = {}  # type: ignore[attr-defined]
    found: dict[str, set[str]] = env.manyhands_files  # type: ignore[attr-defined]
    return found


def forget(_: Sphinx, env: BuildEnvironment, page: str) -> None:
    """A page is read again."""
    linked_files(env).pop(page, None)


def merge(_: Sphinx, env: BuildEnvironment, pages: set[str], other: BuildEnvironment) -> None:
    """Add what another process has read."""
    for page in pages & linked_files(other).keys():
        linked_files(env)[page] = linked_files(other)[page]


def file_pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """A page for each file that a page links to."""
    root = Path(app.srcdir).parent
    for name in sorted({name for names in linked_files(app.env).values() for name in names}):
        text = (root / name).read_text("utf-8")
        code = app.builder.highlighter.highlight_block(text, LANGUAGES[Path(name).suffix])
        body = f"<h1>{escape(name)}</h1>\n{code}"
        yield f"files/{name}", {"title": name, "body": body}, "page.html"


class LinkCode(SphinxPostTransform):
    """Code that is a public name leads to its place in the reference."""

    default_priority = 20

    def run(self, **_: Any) -> None:
        """Wrap literals such as `mh.train` in links."""
        python = self.env.domains["py"]
        for node in list(self.document.findall(nodes.literal)):
            match = re.fullmatch(r"(?:mh|manyhands)((?:\.\w+)+)(?:\(.*\))?", node.astext())
            path = f"manyhands{match[1]}" if match else ""
            inside = isinstance(node.parent, nodes.reference | addnodes.pending_xref | nodes.title)
            if path not in python.objects or inside:
                continue
            if path not in public_names() and python.objects[path].objtype != "module":
                continue
            found = python.objects[path]
            uri = self.app.builder.get_relative_uri(self.env.docname, found.docname)
            link = nodes.reference("", "", internal=True, refuri=f"{uri}#{found.node_id}")
            node.replace_self(link)
            link += node


def setup(app: Sphinx) -> ExtensionMetadata:
    """Add both."""
    app.add_transform(LinkFiles)
    app.add_post_transform(LinkCode)
    app.connect("env-purge-doc", forget)
    app.connect("env-merge-info", merge)
    app.connect("html-collect-pages", file_pages)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
