"""Values that have a text form, and its generation."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from manyhands.notation.fields import alternatives, annotations, default, element, settable, words
from manyhands.notation.grammar import CallNode, Node, is_word, quote


@dataclass(frozen=True, repr=False)
class Value:
    """A frozen dataclass that is written the same in Python and as text.

    A subclass is a `@dataclass(frozen=True, repr=False)`, so that dataclass does not replace
    `__repr__` (a `Catalog` raises TypeError otherwise). It sets its name in text as `name`, raises
    ValueError in `__post_init__` for invalid values, and documents each field in a string below::

        @dataclass(frozen=True, repr=False)
        class TopK(Codec):
            '''Send only the largest entries of an update.'''

            name: ClassVar[str] = "topk"
            density: float = 0.01
            '''The fraction of the entries that is sent.'''

    `str(value)` is its canonical text: `name(field=value, …)`, with the fields that differ from
    their defaults, by keyword and in order. Reading it gives an equal value, provided that it is
    within the grammar's limits and its numbers are finite.
    """

    name: ClassVar[str]
    lacks: ClassVar[dict[str, str]] = {}
    """Fields that a reader may expect and that it has not, with the reason."""

    def __str__(self) -> str:
        return spelled(self)

    def __repr__(self) -> str:
        return str(self)


def spelled(value: Value, node: Node | None = None, also: Collection[str] = ()) -> str:
    """The text of a value with more fields than those that differ from their defaults.

    A reader may not know the defaults, so fields that were written explicitly are shown as well.

    Args:
        value: the value.
        node: the tree of a text that describes it; the fields that it names are shown, too.
        also: further fields to show; those of a field's own value as in `outer.every`.
    """
    fields, types = settable(type(value)), annotations(type(value))
    given: dict[str, Node] = {}
    if isinstance(node, CallNode):
        given = {field.name: part for field, part in zip(fields, node.positional, strict=False)}
        given |= {keyword.name: keyword.value for keyword in node.keywords}
    arguments = []
    for field in fields:
        held, own = getattr(value, field.name), given.get(field.name)
        within = [name[len(field.name) + 1 :] for name in also if name.startswith(f"{field.name}.")]
        if own is not None or within or field.name in also or held != default(field):
            text = (
                spelled(held, own, within)
                if isinstance(held, Value)
                else written(held, types[field.name])
            )
            arguments.append(f"{field.name}={text}")
    return f"{value.name}({', '.join(arguments)})"


def written(held: object, annotation: object) -> str:
    """The text of a field's value."""
    match held:
        case Value():
            text = str(held)
        case None | bool():
            text = str(held).lower()
        case str():
            text = held if held in words(annotation) and is_word(held) else quote(held)
        case int() if _stands_for_float(held, annotation):
            text = float.__repr__(float(held))
        case int():
            text = int.__repr__(held)
        case float():
            text = float.__repr__(held)  # also of a subclass: numpy's floats are floats
        case tuple():
            text = f"[{', '.join(written(item, element(annotation)) for item in held)}]"
        case _:
            raise TypeError(
                f"{held!r} has no text form; use numbers, texts, tuples and other values"
            )
    return text


def _stands_for_float(held: int, annotation: object) -> bool:
    # Equal values have equal texts: 1 in a float field is written as 1.0.
    types = alternatives(annotation)
    return float in types and int not in types and abs(held) < 2**53
