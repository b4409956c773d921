"""Settings of the site: `sphinx-build -W -n -b html docs build/site`.

Nothing is fetched: fonts, scripts, pictures and references are part of the site.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import manyhands

if TYPE_CHECKING:
    from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent))

project = "Manyhands"
author = "The Manyhands developers"
copyright = "The Manyhands developers, Apache-2.0"  # noqa: A001 - Sphinx' name
release = version = manyhands.__version__

extensions = [
    "myst_nb",
    "sphinx_copybutton",
    "sphinx_design",
    "site_extensions.api_reference",
    "site_extensions.command_reference",
    "site_extensions.links",
]
exclude_patterns = ["_build"]
nitpicky = True

myst_enable_extensions = ["colon_fence", "fieldlist"]
myst_heading_anchors = 4

# Pages with {code-cell} are executed at every build; a cell that fails fails the build.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_execution_timeout = 120
nb_merge_streams = True

highlight_language = "text"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 72
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = "Manyhands"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_last_updated_fmt = None
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1f5fbf", "color-brand-content": "#1f5fbf"},
    "dark_css_variables": {"color-brand-primary": "#8ab4f8", "color-brand-content": "#8ab4f8"},
    "top_of_page_buttons": [],
}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

CONTENTS = {
    "index": "start course/index use strategies/README studies/README reference/index develop",
    "start": "tour",
    "use": """
        jobs before-and-after notebooks gpu hosts checkpoints compare results plan search forecast
        costs doctor-and-watch faults robust codecs reducers break-even meanings vocabulary
    """,
    "strategies/README": """
        single allreduce fully_sharded zero tensor context pipeline place offload hybrid synchronous
        softsync ssp asynchronous hogwild central_storage averaging local_sgd diloco hierarchical
        easgd gossip push_sum broadcast ensemble *
    """,
    "studies/README": """
        live-and-virtual stragglers slow-network search easgd-and-downpour ssp-bound diloco-interval
        adpsgd-straggler softsync-wait-for *
    """,
    "decisions/README": "0*",
    "reference/index": """
        command-line verbs job how-and-where loop results errors strategies protocols placements
        codecs schedules data models metrics lr_schedules free callbacks adapters faults virtual
        reports trace costs testing
    """,
    "develop": "architecture write-a-protocol contributing decisions/README changelog",
}
"""The pages below each page. They are not in the pages, where a reader of the repository would see
a list in the notation of Sphinx. A pattern adds the pages that are not named."""


def add_contents(app: Sphinx, page: str, source: list[str]) -> None:
    """Append the hidden table of contents of a page."""
    below = CONTENTS.get(page, "").split()
    # A folder that is not there is no error: its pages are written elsewhere.
    below = [name for name in below if "/" not in name or app.env.found_docs & {name}]
    if below:
        source[0] += "\n".join(["\n\n```{toctree}\n:hidden:\n:glob:\n", *below, "```\n"])


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", add_contents)
