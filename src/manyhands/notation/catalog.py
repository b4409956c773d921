"""Catalog of the classes that a text may name."""

import sys
from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar, cast

from manyhands.notation.construction import CatalogEntry, Construction, readable
from manyhands.notation.description import Description, describe
from manyhands.notation.error import NotationError, unknown
from manyhands.notation.fields import annotations, unwritable
from manyhands.notation.grammar import is_word, parse
from manyhands.notation.value import Value

V = TypeVar("V", bound=Value)


class Catalog(Generic[V]):
    """The classes of one kind of values, by name; reads values from text.

    Args:
        kind: The name of this kind of values in messages: "strategy".
        classes: Subclasses of `Value`; text can construct only these, and those of `nested`.
        nested: Catalogs of values that the fields of these classes may hold, such as codecs.
        aliases: Further names, each for the name of one of the classes. They are read and never
            written.

    Raises a TypeError, with the reason, for a class whose values could not be read back.
    """

    def __init__(
        self,
        kind: str,
        classes: tuple[type[V], ...],
        nested: tuple["Catalog[Any]", ...] = (),
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        self.kind = kind
        for cls in classes:
            _check(cls)
        self._classes = {cls.name: cls for cls in classes}
        self._aliases = dict(aliases or {})
        entries = [(cls.name, CatalogEntry(cls, kind)) for cls in classes]
        for alias, name in self._aliases.items():
            if name not in self._classes:
                raise TypeError(f"alias '{alias}': there is no {kind} '{name}'")
            if not is_word(alias):
                raise TypeError(f"alias '{alias}' is not a name in text; use lower_case")
            entries.append((alias, CatalogEntry(self._classes[name], kind)))
        for catalog in nested:
            entries.extend(catalog._known.items())
        self._known: dict[str, CatalogEntry] = {}
        for name, entry in entries:
            if self._known.setdefault(name, entry) != entry:
                raise TypeError(f"two classes have the name '{name}'; rename one")
        self._built_in = frozenset(self._known)

    def add(self, cls: type[V]) -> None:
        """Add a class, so that a text may name it.

        A class that was added replaces its former definition, as when a file is executed again.

        Raises:
            TypeError: its values could not be read back, or another class has its name.
        """
        if not isinstance(getattr(cls, "name", None), str):
            raise TypeError(
                f"{cls.__qualname__} has no name: write name: ClassVar[str] = "
                f'"{cls.__qualname__.lower()}"'
            )
        _check(cls)
        there = self._known.get(cls.name)
        if there is not None and (cls.name in self._built_in or not _same(there.cls, cls)):
            raise TypeError(
                f"there is a {there.kind} '{cls.name}' already ({there.cls.__module__}."
                f"{there.cls.__qualname__}): give {cls.__qualname__} another name"
            )
        self._classes[cls.name] = cls
        self._known[cls.name] = CatalogEntry(cls, self.kind)

    def include(self, nested: "Catalog[Any]") -> None:
        """Let the fields of these classes hold what was added to a nested catalog meanwhile.

        Raises:
            TypeError: a name is taken by another kind of value.
        """
        for name, entry in nested._known.items():
            there = self._known.get(name)
            if there is not None and there.kind != entry.kind:
                raise TypeError(f"there is a {there.kind} '{name}' already; rename one")
            self._known[name] = entry

    def read(self, source: str | Value) -> V:
        """The value that a text describes; a value of this catalog is returned as it is.

        Raises:
            NotationError: The text is malformed; the message says where and what to write.
            TypeError: `source` is neither a text nor a value of this catalog.
        """
        if isinstance(source, str):
            bases = tuple(self._classes.values())
            return cast("V", Construction(source, self._known).value(parse(source), bases))
        there = self._classes.get(getattr(source, "name", ""))
        if there is not None and (type(source) is there or _same(type(source), there)):
            return cast("V", source)
        remedy = (
            f"; decorate the class {type(source).__qualname__} with @mh.register"
            if isinstance(source, Value)
            else ""
        )
        raise TypeError(
            f"{source!r} is not a {self.kind}; expected a text or a value of one of: "
            f"{', '.join(self.names())}{remedy}"
        )

    def names(self) -> tuple[str, ...]:
        """The names of this catalog's classes, in order, without the aliases."""
        return tuple(self._classes)

    def __contains__(self, name: object) -> bool:
        """Whether a text may start with this name, or this alias."""
        return name in self._classes or name in self._aliases

    def __iter__(self) -> Iterator[type[V]]:
        return iter(self._classes.values())

    def __getitem__(self, name: str) -> type[V]:
        """The class of this name or alias; NotationError with the nearest if there is none."""
        if name not in self:
            problem = f"there is no {self.kind} {name!r}"
            problem = unknown(problem, name, self.names(), self._aliases)
            raise NotationError(problem, name, 0)
        return self._classes[self._aliases.get(name, name)]

    def describe(self, name: str) -> Description:
        """The documentation of the class of this name, and of its fields."""
        return describe(self[name], lambda annotation: readable(annotation, self._known))


def _same(one: type, other: type) -> bool:
    """Whether two classes are definitions of one class: the same name in the same file."""
    return one.__qualname__ == other.__qualname__ and _file(one) == _file(other)


def _file(cls: type) -> str:
    """The file that defines a class, under whatever name its module was executed."""
    module = sys.modules.get(cls.__module__)
    return getattr(module, "__file__", None) or cls.__module__


def _check(cls: type[Value]) -> None:
    """Raise TypeError for a class whose values could not be written as text and read back."""
    if "__dataclass_fields__" not in vars(cls):
        raise TypeError(f"{cls.__qualname__} has to be a @dataclass(frozen=True, repr=False)")
    if cls.__repr__ is not Value.__repr__ or cls.__str__ is not Value.__str__:
        raise TypeError(
            f"{cls.__qualname__} has a __repr__ or __str__ of its own, which is not its text; "
            "say @dataclass(frozen=True, repr=False)"
        )
    for word in (cls.name, *annotations(cls)):
        if not is_word(word):
            raise TypeError(f"{cls.__qualname__}: '{word}' is not a name in text; use lower_case")
    for field, annotation in annotations(cls).items():
        if why := unwritable(annotation, Value):
            raise TypeError(f"{cls.__qualname__}.{field} cannot be written as text: {why}")
