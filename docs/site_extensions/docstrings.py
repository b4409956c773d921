"""Docstrings as MyST Markdown: sections of Google's form become field lists, examples blocks."""

import ast
import re
from collections.abc import Iterator
from textwrap import dedent, indent

FIELDS = {"Args": "param", "Raises": "raises", "Returns": "returns", "Yields": "yields"}
SECTION = re.compile(r"^(Args|Raises|Returns|Yields|Example|Examples|Note):$")
ITEM = re.compile(r"^    (\*{0,2}[\w.]+(?:, [\w.]+)*): ?(.*)$")


def as_markdown(docstring: str) -> str:
    r"""The text of a clean docstring as MyST Markdown.

    Text is Markdown already, except for `<`, which would begin HTML. Indented lines are code, or a
    table that was aligned by hand, and keep their form.

    >>> print(as_markdown("Add.\n\nArgs:\n    x: one\n        number.\n"))
    Add.
    <BLANKLINE>
    :param x: one
            number.
    """
    lines = docstring.strip("\n").splitlines()
    out: list[str] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        block = _indented(lines, at + 1) if SECTION.match(line) else []
        if block:
            out += ["", *_section(line.rstrip(":"), block), ""]
            at += 1 + len(block)
        elif line.startswith("    ") and (not out or not out[-1].strip()):
            block = _indented(lines, at)
            out += [*_code(block), ""]
            at += len(block)
        elif line.startswith(">>>"):
            block = _until_blank(lines, at)
            out += ["", *_code(block), ""]
            at += len(block)
        else:
            out.append(_escaped(re.sub("::$", ":", line)))
            at += 1
    return re.sub(r"\n{3,}", "\n\n", "\n".join(out)).strip()


def _indented(lines: list[str], begin: int) -> list[str]:
    """The indented lines from `begin` on, with blank lines between them."""
    end = begin
    while end < len(lines) and (not lines[end].strip() or lines[end].startswith("    ")):
        end += 1
    while end > begin and not lines[end - 1].strip():
        end -= 1
    return lines[begin:end]


def _until_blank(lines: list[str], begin: int) -> list[str]:
    end = begin
    while end < len(lines) and lines[end].strip():
        end += 1
    return lines[begin:end]


def _section(name: str, block: list[str]) -> Iterator[str]:
    if name not in FIELDS:
        yield f"**{name}**"
        yield ""
        yield from as_markdown(dedent("\n".join(block))).splitlines()
    elif name in {"Returns", "Yields"}:
        text = _escaped(dedent("\n".join(block)))
        yield f":{FIELDS[name]}: {indent(text, '    ').strip()}"
    else:
        for line in block:
            item = ITEM.match(line)
            if item:
                label = item[1].replace("*", r"\*")
                yield f":{FIELDS[name]} {label}: {_escaped(item[2])}"
            else:
                yield _escaped(line)


def _code(block: list[str]) -> Iterator[str]:
    text = dedent("\n".join(block))
    yield f"```{_language(text)}"
    yield from text.splitlines()
    yield "```"


def _language(text: str) -> str:
    if text.startswith(">>>"):
        return "pycon"
    if text.startswith(("manyhands ", "python -m ", "$ ")):
        return "console"
    try:
        ast.parse(text)
    except SyntaxError:
        return "text"
    return "python"


def _escaped(text: str) -> str:
    """`<` and `*` outside of code, which Markdown would take for HTML and emphasis."""
    parts = re.split(r"(`+[^`]*`+)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"[<*]", r"\\\g<0>", part) for part in parts
    )
