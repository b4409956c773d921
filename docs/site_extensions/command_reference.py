"""The directive `command-reference`: every subcommand and option, from the command itself."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

import typer
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

from manyhands.cli.app import app as command

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.util.typing import ExtensionMetadata


def subcommands() -> dict[str, Any]:
    """The subcommands that `manyhands --help` lists, by name."""
    found = typer.main.get_group(command).commands
    return {name: one for name, one in found.items() if not one.hidden}


def reference(name: str) -> str:
    """What `manyhands NAME --help` says, as MyST Markdown."""
    one = subcommands()[name]
    context = typer.Context(one, info_name=f"manyhands {name}")
    blocks = [
        f"## {name}",
        _escaped(inspect.cleandoc(one.help or "")),
        f"```console\n$ manyhands {name} {' '.join(one.collect_usage_pieces(context))}\n```",
        f"```{{program}} manyhands {name}\n```",
    ]
    for parameter in one.params:
        record = parameter.get_help_record(context)
        if record is not None and not getattr(parameter, "hidden", False):
            label, text = record
            blocks.append(f":::{{option}} {label}\n{_with_bounds(text)}\n:::")
    return "\n\n".join(blocks)


def _with_bounds(text: str) -> str:
    """The help text; what follows in brackets, as `[default: 3; x>=1]`, is code."""
    words, _, bounds = text.partition("  [")
    return _escaped(words) + (f" `[{bounds}`" if bounds else "")


def _escaped(text: str) -> str:
    return re.sub(r"[<*]", r"\\\g<0>", text)


class CommandReference(SphinxDirective):
    """The directive `command-reference`."""

    def run(self) -> list[nodes.Node]:
        """Parse the reference of every subcommand, as if it stood in the page."""
        text = "\n\n".join(reference(name) for name in subcommands())
        found = nodes.Element()
        content = StringList(text.splitlines(), "<manyhands --help>")
        self.state.nested_parse(content, 0, found, match_titles=True)
        return found.children


def setup(app: Sphinx) -> ExtensionMetadata:
    """Add the directive."""
    app.add_directive("command-reference", CommandReference)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
