"""Settings of the site: `sphinx-build -W -n -b html docs build/site`.

Nothing is fetched: fonts, scripts, pictures and references are part of the site.
"""

import sys
from pathlib import Path

import manyhands

sys.path.insert(0, str(Path(__file__).parents[1]))

project = "Manyhands"
author = "The Manyhands developers"
copyright = "The Manyhands developers, Apache-2.0"  # noqa: A001 - Sphinx' name
release = version = manyhands.__version__

extensions = [
    "myst_nb",
    "sphinx_copybutton",
    "sphinx_design",
    "docs.site_extensions.api_reference",
    "docs.site_extensions.command_reference",
    "docs.site_extensions.contents",
    "docs.site_extensions.links",
]
source_suffix = {".md": "myst-nb"}
# The course as notebooks: its pages have the same text and output.
exclude_patterns = ["course/notebooks/*"]
nitpicky = True
smartquotes = False  # options begin with two hyphens
# An ellipsis in code stands for what is left out; the rest is highlighted all the same.
suppress_warnings = ["misc.highlighting_failure"]

myst_enable_extensions = ["colon_fence", "fieldlist"]
myst_heading_anchors = 4

# Pages with {code-cell} are executed at every build; a cell that fails fails the build.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_execution_timeout = 120
nb_output_stderr = "remove"  # lines of progress

highlight_language = "text"
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
copybutton_line_continuation_character = "\\"
