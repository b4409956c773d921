"""Types of a value's fields, from the annotations of its dataclass.

The types that can be written as text: int, float, bool, str, None, Literal of words,
`tuple[X, ...]`, classes of values, and unions of these.
"""

import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

PLAIN = {int: "integer", float: "number", bool: "true or false", str: "text", type(None): "none"}
"""The types whose values are written without a name, and their names in messages."""


def settable(cls: type[Any]) -> tuple["Field[Any]", ...]:
    """The fields of the constructor, in its order: keyword-only ones come last."""
    given = (field for field in fields(cls) if field.init)
    return tuple(sorted(given, key=lambda field: bool(field.kw_only)))


def default(field: "Field[Any]") -> object:
    """The field's default, or MISSING if a value has to be given."""
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default


def annotations(cls: type[Any]) -> Mapping[str, object]:
    """The fields' types by name, with forward references resolved."""
    return _resolved(cls)  # type: ignore[arg-type] # mypy takes type[Any] for unhashable


def alternatives(annotation: object) -> tuple[object, ...]:
    """The members of a union; for any other type, the type itself."""
    if get_origin(annotation) in {Union, types.UnionType}:
        return get_args(annotation)
    return (annotation,)


def words(annotation: object) -> tuple[str, ...]:
    """The words that a field may hold, from the Literals of its type."""
    return tuple(
        word
        for alternative in alternatives(annotation)
        if get_origin(alternative) is Literal
        for word in get_args(alternative)
    )


def element(annotation: object) -> object:
    """The type of a list's elements: X of `tuple[X, ...]`; None if it is not a list type."""
    return next(_elements(annotation), None)


def classes(annotation: object) -> tuple[type[Any], ...]:
    """The classes of values that a field may hold."""
    return tuple(
        alternative
        for alternative in alternatives(annotation)
        if isinstance(alternative, type)
        and get_origin(alternative) is None
        and alternative not in PLAIN
    )


def unwritable(annotation: object, value: type[Any]) -> str | None:
    """Why a field of this type cannot be written as text, or None if it can.

    `value` is the class that all values derive from.
    """
    for alternative in alternatives(annotation):
        if get_origin(alternative) is Literal:
            if not all(isinstance(word, str) for word in get_args(alternative)):
                return f"{alternative} has values that are not lower-case words"
        elif get_origin(alternative) is tuple and get_args(alternative)[1:] == (...,):
            if why := unwritable(get_args(alternative)[0], value):
                return why
        elif alternative not in PLAIN and alternative not in classes(alternative):
            return f"{alternative} has no text form"
    if len(tuple(_elements(annotation))) > 1:
        return f"{annotation} has more than one list type"
    for cls in classes(annotation):
        if not issubclass(cls, value):
            return f"{cls.__qualname__} is not a {value.__qualname__}"
    return None


def _elements(annotation: object) -> Iterator[object]:
    for alternative in alternatives(annotation):
        if get_origin(alternative) is tuple:
            yield get_args(alternative)[0]


# Resolving evaluates the annotations of the source. A catalog does that when it is constructed, so
# nothing is ever evaluated while a text is read.
@cache
def _resolved(cls: type[Any]) -> dict[str, object]:
    try:
        hints = get_type_hints(cls)
    except NameError as error:
        raise TypeError(
            f"{cls.__qualname__}: {error}; the types of a value's fields are needed when it runs, "
            "so import them outside TYPE_CHECKING"
        ) from error
    return {field.name: hints[field.name] for field in settable(cls)}
