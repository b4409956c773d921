"""Decoded arrays: original files decoded once per host, into files that every process maps.

A decoded array is a plain `.npy` file of bytes, mapped read-only: its pages are in the kernel's
cache, so eight workers on a host share one copy, and pages that no batch uses are not read. The
file's name contains the checksum of the originals, so other originals give another file, and an
existing file is used without reading its originals.
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
    """The dataset's name: its splits share a lock, because they may share an archive."""
    split: str
    originals: tuple[Original, ...]
    decode: Callable[[list[bytes]], tuple[Bytes, ...]]
    """Decodes the originals' bytes into arrays."""
    shapes: tuple[tuple[int, ...], ...]
    """The shape of each array, in the order that `decode` returns them."""
    whole: tuple[Original, ...] = ()
    """The originals of all splits: a message about missing files names them at once."""

    def arrays(self) -> tuple[Bytes, ...]:
        """The arrays, mapped read-only; decoded first if this host does not have them."""
        arrays = self._mapped()
        if arrays is None:
            with locked(cache_folder() / f"{self.set}.lock"):
                # Another process that held the lock may have decoded them.
                arrays = self._mapped() or self._made()
        return arrays

    def _made(self) -> tuple[Bytes, ...]:
        made = self.decode(originals.read(self.originals, self.whole))
        for path, array in zip(self._paths(), made, strict=True):
            with replacing(path) as file:
                np.save(file, array, allow_pickle=False)
        arrays = self._mapped()
        if arrays is None:
            raise RuntimeError(
                f"{self.set} {self.split}: expected arrays of shapes {list(self.shapes)}, "
                f"got {[array.shape for array in made]}"
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
    """The array in a file, or None if the file is missing, truncated or something else."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (FileNotFoundError, EOFError, ValueError):
        return None
    whole = (
        array.dtype == np.uint8
        and array.shape == shape
        and path.stat().st_size == array.offset + array.nbytes
    )
    # As a plain array, because indexing a memmap is slower.
    return array.view(np.ndarray) if whole else None
