"""Documentation of a class of values, from its docstring and those below its fields."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable
from dataclasses import MISSING, dataclass, is_dataclass
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

from manyhands.notation.fields import annotations, default, settable
from manyhands.notation.value import Value, written

_EXAMPLE = re.compile(r"^Example: `(?P<text>[^`]+)`$", re.MULTILINE)


class FieldDescription(NamedTuple):
    """One field of a value."""

    name: str
    type: str
    """The type in words: `integer or none`."""
    default: str
    """The default as text, or `required`."""
    text: str
    """The docstring below the field, on one line; empty if there is none."""


@dataclass(frozen=True)
class Description:
    """The documentation of a class of values."""

    name: str
    summary: str
    """The first line of the class's docstring."""
    text: str
    """The rest of the docstring."""
    fields: tuple[FieldDescription, ...]
    example: str
    """An example: from the docstring's line "Example: `…`", else the bare name."""

    @property
    def signature(self) -> str:
        """Every field with its default: `ssp(staleness, servers=1)`."""
        arguments = (
            field.name if field.default == "required" else f"{field.name}={field.default}"
            for field in self.fields
        )
        return f"{self.name}({', '.join(arguments)})"


def describe(cls: type[Value], readable: Callable[[object], str]) -> Description:
    """The description of a class of values; `readable` puts a type in words."""
    summary, _, text = _docstring(cls).partition("\n")
    example = _EXAMPLE.search(text)
    types, texts = annotations(cls), field_docstrings(cls)
    fields = (
        FieldDescription(
            name=field.name,
            type=readable(types[field.name]),
            default=(
                "required"
                if default(field) is MISSING
                else written(default(field), types[field.name])
            ),
            text=texts.get(field.name, ""),
        )
        for field in settable(cls)
    )
    return Description(
        name=cls.name,
        summary=summary,
        text=text.strip("\n"),
        fields=tuple(fields),
        example=example["text"] if example else f"{cls.name}()",
    )


def _docstring(cls: type[Value]) -> str:
    text = inspect.cleandoc(vars(cls).get("__doc__") or "")
    # A dataclass without a docstring is given its Python signature as one.
    return "" if text.startswith(f"{cls.__name__}(") else text


def field_docstrings(cls: type[Any]) -> dict[str, str]:
    """The docstrings of a class's fields, inherited ones included, by name."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if is_dataclass(base):
            texts |= _own_field_docstrings(base)
    return texts


@cache
def _own_field_docstrings(cls: type[Any]) -> dict[str, str]:
    try:
        source = inspect.getsource(cls)
    except (OSError, TypeError):  # typed into a shell, or installed without sources
        return {}
    (definition,) = ast.parse(textwrap.dedent(source)).body
    if not isinstance(definition, ast.ClassDef):
        return {}
    texts: dict[str, str] = {}
    for field, below in pairwise(definition.body):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                texts[name] = " ".join(text.split())
    return texts
