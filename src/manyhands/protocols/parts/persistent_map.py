"""Persistent mapping: an update returns a new version in constant time.

Server states are values: a decision does not change the old state. Copying a dict for every change
would make each decision linear in the number of workers
(`docs/decisions/0040-decisions-in-constant-time.md`). Versions of a `PersistentMap` share one dict,
which belongs to the newest version; an older version stores what to undo (Baker, Shallow binding
makes functional arrays fast, 1991). Reading an old version copies the dict, which a server never
does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

V = TypeVar("V")
_ABSENT = object()


@dataclass(eq=False)
class PersistentMap(Generic[V]):
    """A mapping from names of workers to values, in insertion order."""

    entries: dict[str, V] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._newer: tuple[PersistentMap[V], str, object] | None = None
        """The version that now owns the dict, the name that it changed, and the old value."""

    @classmethod
    def of(cls, names: Iterable[str], value: V) -> PersistentMap[V]:
        """A mapping with the same value for all names."""
        return cls(dict.fromkeys(names, value))

    def put(self, name: str, value: V) -> PersistentMap[V]:
        """A new version with another value for a name."""
        entries = self._own()
        newer = PersistentMap(entries)
        self._newer = (newer, name, entries.get(name, _ABSENT))
        entries[name] = value
        return newer

    def without(self, name: str) -> PersistentMap[V]:
        """A copy without a name, in the same order."""
        if name not in self:
            return self
        # A copy: undoing a removal would put the name at the end, and sums are computed in the
        # order of the entries.
        entries = dict(self._own())
        del entries[name]
        return PersistentMap(entries)

    def get(self, name: str, default: V) -> V:
        """The value of a name, or `default`."""
        return self._own().get(name, default)

    def values(self) -> tuple[V, ...]:
        """All values, in order."""
        return tuple(self._own().values())

    def __getitem__(self, name: str) -> V:
        return self._own()[name]

    def __contains__(self, name: object) -> bool:
        return name in self._own()

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._own()))

    def __len__(self) -> int:
        return len(self._own())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PersistentMap):
            return NotImplemented
        if self._newer is not None and self._newer[0] is other:
            _, name, before = self._newer
            return bool(other[name] == before)
        if other._newer is not None and other._newer[0] is self:
            return other == self
        return self is other or self._own() == other._own()

    __hash__ = None  # type: ignore[assignment] # its dict may pass to a newer version

    def _own(self) -> dict[str, V]:
        """The dict of this version."""
        if self._newer is not None:
            changes = []
            at: PersistentMap[V] = self
            while at._newer is not None:
                at, name, before = at._newer
                changes.append((name, before))
            entries = dict(at.entries)
            for name, before in reversed(changes):
                if before is _ABSENT:
                    del entries[name]
                else:
                    entries[name] = before  # type: ignore[assignment] # it was a V before
            self.entries, self._newer = entries, None
        return self.entries
