"""Journal of inputs, from which the successor of a state machine continues.

A state machine whose decisions depend on its inputs alone is restored by replaying them. Each input
is written before it takes effect, so that no decision is known outside that a successor would not
make. Now and then the inputs are replaced by fewer records with the same effect, such as a snapshot
of the state: the journal stays short.

There are two areas, used in turn. A new generation is written to the area that is not in use, and
counts when it is complete; until then the last one is valid. A record has its length and a
checksum, so that one that was not written completely is recognised: its input never took effect.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

_FRAME = struct.Struct("<II")
"""Bytes of a record, and their checksum."""
_HEAD = struct.Struct("<QI")
"""The first record of an area: its generation, and the number of records that it began with."""
MOST = 4096
"""Inputs after which the journal is to be shortened."""


class Areas(Protocol):
    """Storage of a journal: two areas of bytes, numbered 0 and 1."""

    def read(self, area: int) -> bytes:
        """All bytes of an area."""

    def clear(self, area: int) -> None:
        """Empty an area."""

    def append(self, area: int, data: bytes) -> None:
        """Write bytes at the end of an area."""


class PrivateAreas:
    """Areas in the memory of this process."""

    def __init__(self) -> None:
        self._areas = (bytearray(), bytearray())

    def read(self, area: int) -> bytes:
        """All bytes of an area."""
        return bytes(self._areas[area])

    def clear(self, area: int) -> None:
        """Empty an area."""
        self._areas[area].clear()

    def append(self, area: int, data: bytes) -> None:
        """Write bytes at the end of an area."""
        self._areas[area].extend(data)


class InputJournal:
    """The journal of one state machine; `recover` comes first.

    Args:
        areas: the storage.
        most: inputs after which it is to be shortened.

    >>> areas = PrivateAreas()
    >>> journal = InputJournal(areas)
    >>> journal.recover()
    []
    >>> journal.append(b"an input")
    >>> InputJournal(areas).recover()
    [b'an input']
    """

    def __init__(self, areas: Areas, most: int = MOST) -> None:
        self._areas = areas
        self.most = most
        """Inputs after which it is to be shortened."""
        self._area = 1
        self._generation = 0
        self._added = 0
        """Records since the journal was shortened."""

    @property
    def is_long(self) -> bool:
        """Whether it is to be shortened."""
        return self._added >= self.most

    def recover(self) -> list[bytes]:
        """The records of a predecessor, in order; empty if there was none."""
        found = [(*_parse(self._areas.read(area)), area) for area in (0, 1)]
        self._generation, records, is_torn, self._area = max(
            found, key=lambda each: (each[0], -each[3])
        )
        self._added = len(records)
        # A reader stops at a torn record, so inputs that are appended behind it would never be
        # replayed.
        if self._generation == 0 or is_torn:
            self.shorten(records)
        return records

    def append(self, record: bytes) -> None:
        """Write an input; it may take effect when this call has returned."""
        self._areas.append(self._area, _framed(record))
        self._added += 1

    def shorten(self, records: Sequence[bytes]) -> None:
        """Replace all records so far by these."""
        # The area in use stays as it is until the other one is complete: a process that is killed
        # between these calls leaves one area without a complete generation, and the last one valid.
        area = 1 - self._area
        head = _HEAD.pack(self._generation + 1, len(records))
        self._areas.clear(area)
        self._areas.append(area, b"".join(map(_framed, (head, *records))))
        self._area = area
        self._generation += 1
        self._added = 0


def _framed(record: bytes) -> bytes:
    return _FRAME.pack(len(record), zlib.crc32(record)) + record


def _parse(data: bytes) -> tuple[int, list[bytes], bool]:
    """An area's generation (0: it is not complete), its records, and whether the last is torn."""
    records, at = [], 0
    while at + _FRAME.size <= len(data):
        length, checksum = _FRAME.unpack_from(data, at)
        record = data[at + _FRAME.size : at + _FRAME.size + length]
        if len(record) < length or zlib.crc32(record) != checksum:
            break
        records.append(record)
        at += _FRAME.size + length
    if not records or len(records[0]) != _HEAD.size:
        return 0, [], False
    generation, count = _HEAD.unpack(records[0])
    # The writer was killed while it shortened the journal: this generation lacks some of the
    # records with which it begins.
    if len(records) <= count:
        return 0, [], False
    return generation, records[1:], at < len(data)
