"""Construction of values from syntax trees: names are looked up and types are checked."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass
from typing import Any, Literal, get_origin

from manyhands.notation.error import NotationError, unknown
from manyhands.notation.fields import (
    PLAIN,
    alternatives,
    annotations,
    classes,
    default,
    element,
    settable,
    words,
)
from manyhands.notation.grammar import (
    CallNode,
    IntegerNode,
    ListNode,
    Node,
    RealNode,
    TextNode,
    WordNode,
    quote,
)
from manyhands.notation.value import Value


@dataclass(frozen=True)
class CatalogEntry:
    """A class that a text may name, and the kind of its values."""

    cls: type[Value]
    kind: str


Known = Mapping[str, CatalogEntry]
"""All names that a text may use, including aliases; nothing else is ever constructed."""


def kinds(bases: tuple[type[Any], ...], known: Known) -> str:
    """The kinds of these classes, for messages: `strategy`, `codec or reducer`."""
    found = {entry.kind for entry in known.values() if issubclass(entry.cls, bases)}
    return " or ".join(sorted(found) or [base.__qualname__ for base in bases])


def readable(annotation: object, known: Known) -> str:
    """A field's type in words: `integer or none`, `ring or exponential`, `list of number`."""

    def parts() -> Iterator[str]:
        for alternative in alternatives(annotation):
            if isinstance(alternative, type) and alternative in PLAIN:
                yield PLAIN[alternative]
            elif get_origin(alternative) is Literal:
                yield from words(alternative)
            elif get_origin(alternative) is tuple:
                yield f"list of {readable(element(alternative), known)}"
            else:
                yield kinds(classes(alternative), known)

    return " or ".join(dict.fromkeys(parts()))


@dataclass(frozen=True)
class Construction:
    """The construction of one value from a text."""

    text: str
    """The text, for messages."""
    known: Known

    def value(self, node: Node, bases: tuple[type[Value], ...]) -> Value:
        """The value that the node describes, of one of these classes."""
        if isinstance(node, WordNode):
            node = CallNode(node.text, at=node.at)
        if not isinstance(node, CallNode):
            problem = (
                f"expected a {kinds(bases, self.known)} written as name(…), found {_found(node)}"
            )
            raise NotationError(problem, self.text, node.at)
        cls = self._class(node, bases)
        given = self._given(cls, node)
        try:
            return cls(**given)
        except ValueError as error:
            raise NotationError(f"{cls.name}: {error}", self.text, node.at) from error

    def _class(self, call: CallNode, bases: tuple[type[Value], ...]) -> type[Value]:
        entry = self.known.get(call.name)
        if entry is not None and issubclass(entry.cls, bases):
            return entry.cls
        kind = kinds(bases, self.known)
        problem = (
            f"there is no {kind} '{call.name}'"
            if entry is None
            else f"'{call.name}' is a {entry.kind}, and a {kind} was expected"
        )
        names, aliases = self._names(bases)
        raise NotationError(
            unknown(problem, call.name, names, aliases),
            self.text,
            call.at,
            undefined=entry is None,
        )

    def _given(self, cls: type[Value], call: CallNode) -> dict[str, object]:
        """The constructor's arguments by name, checked against the fields' types."""
        fields = {field.name: field for field in settable(cls)}
        ordered = [field.name for field in fields.values() if not field.kw_only]
        if len(call.positional) > len(ordered):
            takes = f"at most {len(ordered)} arguments without a name: {', '.join(ordered)}"
            if not ordered:
                takes = f"arguments by name only: {', '.join(fields)}" if fields else "no arguments"
            at = call.positional[len(ordered)].at
            raise NotationError(f"{cls.name} takes {takes}", self.text, at)
        nodes = dict(zip(ordered, call.positional, strict=False))
        for keyword in call.keywords:
            if keyword.name not in fields:
                lacks = f"has no field '{keyword.name}'" if fields else "takes no arguments"
                problem = unknown(f"{cls.name} {lacks}", keyword.name, fields)
                if keyword.name in cls.lacks:
                    problem = f"{cls.name} has no field '{keyword.name}': {cls.lacks[keyword.name]}"
                raise NotationError(problem, self.text, keyword.at)
            if keyword.name in nodes:
                problem = f"'{keyword.name}' is given twice, by position and by name; keep one"
                raise NotationError(problem, self.text, keyword.at)
            nodes[keyword.name] = keyword.value
        types = annotations(cls)
        for name, field in fields.items():
            if name not in nodes and default(field) is MISSING:
                problem = f"{cls.name} needs '{name}': {readable(types[name], self.known)}"
                raise NotationError(problem, self.text, call.at)
        return {
            name: self._held(node, types[name], f"'{name}' of {cls.name}")
            for name, node in nodes.items()
        }

    def _held(self, node: Node, annotation: object, where: str) -> object:  # noqa: PLR0911 - a table: one line per form
        """The value of a node for a field of this type."""
        types = alternatives(annotation)
        match node:
            case WordNode("none") if type(None) in types:
                return None
            case WordNode("true" | "false") if bool in types:
                return node.text == "true"
            case WordNode(word) if word in words(annotation):
                return word
            case TextNode(text) if str in types or text in words(annotation):
                return text
            case IntegerNode(number) if int in types:
                return number
            case IntegerNode(number) | RealNode(number) if float in types:
                return float(number)
            case ListNode(elements) if (inner := element(annotation)) is not None:
                return tuple(self._held(item, inner, where) for item in elements)
            case CallNode() if bases := classes(annotation):
                return self.value(node, bases)
            case WordNode(name) if name in self.known and (bases := classes(annotation)):
                return self.value(node, bases)
            case _:
                raise self._mismatch(node, annotation, where)

    def _mismatch(self, node: Node, annotation: object, where: str) -> NotationError:
        expected = readable(annotation, self.known)
        problem = f"expected {expected} for {where}, found {_found(node)}"
        if isinstance(node, WordNode):
            names, aliases = self._names(classes(annotation))
            problem = unknown(problem, node.text, names, [*aliases, *_words(annotation)])
            undefined = node.text not in self.known and bool(names)
            return NotationError(problem, self.text, node.at, undefined=undefined)
        return NotationError(problem, self.text, node.at)

    def _names(self, bases: tuple[type[Any], ...]) -> tuple[list[str], list[str]]:
        """The names of the known subclasses, and their aliases."""
        fitting = {
            name: entry for name, entry in self.known.items() if issubclass(entry.cls, bases)
        }
        names = [name for name, entry in fitting.items() if name == entry.cls.name]
        return names, [name for name in fitting if name not in names]


def _words(annotation: object) -> Iterator[str]:
    """The words that a field of this type accepts, without names of values."""
    yield from words(annotation)
    if bool in alternatives(annotation):
        yield from ("true", "false")
    if type(None) in alternatives(annotation):
        yield "none"


def _found(node: Node) -> str:
    """A short description of a node, for messages."""
    match node:
        case WordNode(text):
            return f"'{text}'"
        case IntegerNode(value) | RealNode(value):
            return repr(value)
        case TextNode(value):
            return quote(value if len(value) <= 32 else value[:31] + "…")
        case ListNode():
            return "a list"
        case CallNode(name):
            return f"{name}(…)"
