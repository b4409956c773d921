"""Catalog of the classes that a text may name."""

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

    def read(self, source: str | Value) -> V:
        """The value that a text describes; a value of this catalog is returned as it is.

        Raises:
            NotationError: The text is malformed; the message says where and what to write.
            TypeError: `source` is neither a text nor a value of this catalog.
        """
        if isinstance(source, str):
            bases = tuple(self._classes.values())
            return cast("V", Construction(source, self._known).value(parse(source), bases))
        if type(source) in self._classes.values():
            return cast("V", source)
        raise TypeError(
            f"{source!r} is not a {self.kind}; expected a text or a value of one of: "
            f"{', '.join(self.names())}"
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
