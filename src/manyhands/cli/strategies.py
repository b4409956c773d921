"""`manyhands strategies`: lists the strategies, or explains one."""

import textwrap
from typing import TYPE_CHECKING, Annotated

import typer

from manyhands.notation import Description, NotationError
from manyhands.strategies import CATALOG, is_known
from manyhands.strategies.catalog import add, hint
from manyhands.strategies.plugins import load_plugins

if TYPE_CHECKING:
    from rich.console import Console

SIGNATURE_WIDTH = 34
"""Columns for a name with its fields in the list: the summary keeps more than half of 80."""


def strategies(
    name: Annotated[
        str | None, typer.Argument(help="Explain this strategy; without it, list them all.")
    ] = None,
) -> None:
    """List the strategies, or explain one: its fields, its defaults and how it is written."""
    # Not at the top: `manyhands --help` should not wait for it.
    from rich.console import Console  # noqa: PLC0415

    console = Console(highlight=False, markup=False)
    if name is None:
        _list(console)
        return
    try:
        if not is_known(name):
            load_plugins(add)
        hint(name)
        description = CATALOG.describe(name)
    except NotationError as error:
        typer.echo(error.problem, err=True)
        raise typer.Exit(2) from None
    _explain(console, description, CATALOG[name].support)


def _list(console: "Console") -> None:
    from rich.table import Table  # noqa: PLC0415 - see above

    table = Table(box=None, pad_edge=False, padding=(0, 3, 1, 0), header_style="bold")
    table.add_column("strategy", style="cyan", no_wrap=True)
    table.add_column("support", no_wrap=True)
    table.add_column("what it does")
    load_plugins(add)
    for cls in CATALOG:
        description = CATALOG.describe(cls.name)
        table.add_row(_signature(description, SIGNATURE_WIDTH), cls.support, description.summary)
    console.print(table)
    console.print("\nDetails of one strategy: manyhands strategies NAME")


def _explain(console: "Console", description: Description, support: str) -> None:
    from rich.padding import Padding  # noqa: PLC0415 - see above

    console.print(_signature(description, console.width), style="bold cyan")
    console.print(description.summary)
    for paragraph in _paragraphs(description.text):
        console.print()
        console.print(paragraph)
    if description.fields:
        console.print("\nFields", style="bold")
    for field in description.fields:
        default = field.default if field.default == "required" else f"default {field.default}"
        console.print(f"  {field.name}: {field.type}, {default}")
        console.print(Padding(field.text, (0, 0, 0, 6)))
    console.print("\nSupport", style="bold")
    console.print(f"  {support}")
    console.print("\nExample", style="bold")
    console.print(f"  {description.example}", soft_wrap=True)
    command, option = "  manyhands train train.py", f"--strategy '{description.example}'"
    whole = f"{command} {option}"
    if len(whole) > console.width:
        whole = f"{command} \\\n      {option}"
    console.print(whole, soft_wrap=True)


def _signature(description: Description, width: int) -> str:
    """The signature, broken between fields and aligned as Python code is."""
    margin = " " * (len(description.name) + 1)
    return "\n".join(
        textwrap.wrap(
            description.signature,
            width,
            subsequent_indent=margin,
            break_long_words=False,
            break_on_hyphens=False,
        )
    )


def _paragraphs(text: str) -> list[str]:
    """The docstring's paragraphs, each as one line that the terminal wraps.

    Equations, code and lists keep their lines. The example is omitted: it is shown at the end,
    also as a command.
    """
    paragraphs = [paragraph for paragraph in text.split("\n\n") if paragraph.strip()]
    return [
        paragraph if paragraph.startswith((" ", ">>>", "- ")) else " ".join(paragraph.split())
        for paragraph in paragraphs
        if not paragraph.startswith("Example: `")
    ]
