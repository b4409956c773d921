"""A full disk on purpose: a file that takes all space of a small file system."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path

_LARGEST = 256 << 20
"""The most free bytes that are filled."""
_NAME = "full-disk.tmp"


def check_disk(folder: Path) -> None:
    """Raise ValueError, naming the fix, if filling the disk of a folder could disturb others."""
    others = ("/", tempfile.gettempdir(), Path.home(), Path.cwd())
    shared = folder.stat().st_dev in {
        Path(other).stat().st_dev for other in others if Path(other).exists()
    }
    free = shutil.disk_usage(folder).free
    if shared or free > _LARGEST:
        why = "others use it too" if shared else f"{free / 1e6:,.0f} MB are free there"
        raise ValueError(
            f"the disk of {folder} is not filled on purpose: {why}. Put the run's folder on a file "
            "system of its own, of a few MB: mount -t tmpfs -o size=16m tmpfs disk, then --output "
            "disk/run"
        )


def fill_disk(folder: Path) -> Path:
    """Take all free space of a folder's file system; return the file that takes it."""
    path = folder / _NAME
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass
    return path
