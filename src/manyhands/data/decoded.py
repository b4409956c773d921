"""Originals decoded once per host, into files that every process maps.

A decoded array is a plain `.npy` file of bytes, mapped read-only: its pages belong to the kernel's
cache, so eight workers on a host hold one copy, and a page that no batch touches is not read. The
file's name carries the checksum of the originals, so other originals make another file and a file
that is there needs no second look at its originals.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from manyhands.data import originals
from manyhands.data.folders import cache_folder
from manyhands.data.sharing import locked, replacing

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from manyhands.data.originals import Original

Bytes: TypeAlias = NDArray[np.uint8]


@dataclass(frozen=True)
class Decoded:
    """The arrays that some originals decode to."""

    set: str
    """The set's name: its splits share a lock, because they may share an archive."""
    split: str
    originals: tuple[Original, ...]
    decode: Callable[[list[bytes]], tuple[Bytes, ...]]
    """Makes the arrays of the originals' bytes."""
    shapes: tuple[tuple[int, ...], ...]
    """The shape of each array, in the order that `decode` returns them."""

    def arrays(self) -> tuple[Bytes, ...]:
        """The arrays, mapped read-only; made first where this host does not have them."""
        arrays = self._mapped()
        if arrays is None:
            with locked(cache_folder() / f"{self.set}.lock"):
                # Whoever held the lock before may have made them.
                arrays = self._mapped() or self._made()
        return arrays

    def _made(self) -> tuple[Bytes, ...]:
        made = self.decode(originals.read(self.originals))
        for path, array in zip(self._paths(), made, strict=True):
            with replacing(path) as file:
                np.save(file, array, allow_pickle=False)
        arrays = self._mapped()
        if arrays is None:
            raise RuntimeError(
                f"{self.set} {self.split} decodes to arrays of shapes "
                f"{[array.shape for array in made]} and not {list(self.shapes)}"
            )
        return arrays

    def _mapped(self) -> tuple[Bytes, ...] | None:
        arrays = []
        for path, shape in zip(self._paths(), self.shapes, strict=True):
            array = _mapped(path, shape)
            if array is None:
                return None
            arrays.append(array)
        return tuple(arrays)

    def _paths(self) -> list[Path]:
        sums = "".join(original.sha256 for original in self.originals)
        key = hashlib.sha256(sums.encode()).hexdigest()[:16]
        folder = cache_folder() / "decoded"
        return [
            folder / f"{self.set}-{self.split}-{key}-{index}.npy"
            for index in range(len(self.shapes))
        ]


def _mapped(path: Path, shape: tuple[int, ...]) -> Bytes | None:
    """The array in a file, or None where the file is absent, cut short or something else."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (FileNotFoundError, EOFError, ValueError):
        return None
    whole = (
        array.dtype == np.uint8
        and array.shape == shape
        and path.stat().st_size == array.offset + array.nbytes
    )
    # As a plain array, because memmap's own indexing costs more than it gives.
    return array.view(np.ndarray) if whole else None
