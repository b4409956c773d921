"""The order of the pages, the navigation at their side, and the page that finds words.

The tables of contents are not in the pages, where a reader of the repository would see a list in
the notation of Sphinx. The navigation shows the pages beside, above and below the present one;
Sphinx would write all of them into every page, which takes a third of the time of a build.

Sphinx calls the page that shows what was found `search`, as ours on the subcommand is called; here
it is `find`.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from sphinx.builders.html import StandaloneHTMLBuilder

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx
    from sphinx.util.typing import ExtensionMetadata

CONTENTS = {
    "index": """
        start course/index cases/README use strategies/README studies/README reference/index develop
    """,
    "start": "tour",
    "use": """
        commands guarantees jobs before-and-after notebooks meanings hosts slurm kubernetes ray
        containers gpu checkpoints doctor-and-watch compare results
        plan search forecast costs codecs reducers break-even faults robust vocabulary
    """,
    "course/index": "",
    "cases/README": "",
    "strategies/README": """
        single allreduce fully_sharded zero tensor context pipeline place offload hybrid synchronous
        softsync ssp asynchronous hogwild central_storage averaging local_sgd diloco hierarchical
        easgd gossip push_sum broadcast ensemble
    """,
    "studies/README": """
        live-and-virtual stragglers slow-network search easgd-and-downpour ssp-bound diloco-interval
        adpsgd-straggler softsync-wait-for sparse-gradients
    """,
    "reference/index": """
        command-line verbs job how-and-where loop results errors strategies protocols placements
        codecs schedules data models metrics lr_schedules free callbacks adapters faults virtual
        reports trace costs testing
    """,
    "develop": """
        architecture write-a-protocol contributing decisions/README deprecation roadmap changelog
    """,
    "decisions/README": "",
}
"""The pages below each page, in order. A page that is not named follows after those of its folder;
one in `docs/` itself is below "use". A page that does not exist is left out."""


def contents(found: set[str]) -> dict[str, list[str]]:
    """The pages below each page, of those that were found.

    >>> contents({"index", "use", "start", "jobs", "new", "decisions/README", "decisions/0001-a"})
    {'index': ['start', 'use'], 'use': ['jobs', 'new'], 'decisions/README': ['decisions/0001-a']}
    """
    named = {
        page: [_in_folder_of(page, name) for name in names.split()]
        for page, names in CONTENTS.items()
    }
    rest = found - {"index"} - {name for names in named.values() for name in names}
    for name in sorted(rest - named.keys()):
        folder = name.rpartition("/")[0]
        parents = (f"{folder}/README", f"{folder}/index") if folder else ("use",)
        for parent in parents:
            if parent in named:
                named[parent].append(name)
    kept = {page: [name for name in names if name in found] for page, names in named.items()}
    return {page: names for page, names in kept.items() if page in found and names}


def _in_folder_of(page: str, name: str) -> str:
    folder = page.rpartition("/")[0]
    return f"{folder}/{name}" if folder else name


def add_contents(app: Sphinx, page: str, source: list[str]) -> None:
    """Append the hidden table of contents of a page, unless it has one of its own."""
    below = contents(app.env.found_docs).get(page)
    if below and "{toctree}" not in source[0]:
        lines = "\n".join(f"/{name}" for name in below)
        source[0] += f"\n\n```{{toctree}}\n:hidden:\n\n{lines}\n```\n"


def show_navigation(
    app: Sphinx, page: str, _template: str, context: dict[str, Any], _tree: nodes.document | None
) -> None:
    """Give the theme a table of contents in which only the present branch is open."""
    includes, titles = app.env.toctree_includes, app.env.titles
    above = {name: parent for parent, names in includes.items() for name in names}
    branch = [page]
    while branch[-1] in above:
        branch.append(above[branch[-1]])

    def entries(parent: str, level: int) -> str:
        items = []
        for name in includes.get(parent, ()):
            current = " current" if name in branch else ""
            here = " current-page" if name == page else ""
            title = titles[name].astext()
            if name.startswith("strategies/"):
                title = title.partition("(")[0]
            title = escape(title)
            uri = "#" if name == page else app.builder.get_relative_uri(page, name)
            below = entries(name, level + 1) if current else ""
            items.append(
                f'<li class="toctree-l{level}{current}{here}">'
                f'<a class="{("current " if current else "")}reference internal" '
                f'href="{uri}">{title}</a>{below}</li>'
            )
        return f"<ul>{''.join(items)}</ul>" if items else ""

    to_page = context["pathto"]
    context["pathto"] = lambda name, *rest, **more: to_page(
        "find" if name == "search" else name, *rest, **more
    )
    context["toctree"] = lambda **_: entries(app.config.root_doc, 1)


class SiteBuilder(StandaloneHTMLBuilder):
    """The builder `html`, with another name for the page that finds words."""

    def gen_additional_pages(self) -> None:
        """Write the pages that are no documents."""
        self.search = False
        super().gen_additional_pages()
        self.search = True
        self.handle_page("find", {}, "search.html")


def setup(app: Sphinx) -> ExtensionMetadata:
    """Add them; the navigation before the theme asks for it."""
    app.add_builder(SiteBuilder, override=True)
    app.connect("source-read", add_contents)
    app.connect("html-page-context", show_navigation, priority=100)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
