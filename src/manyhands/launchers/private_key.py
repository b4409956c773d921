"""The run's key as a file that only its user can read."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from manyhands.failure import refusing
from manyhands.files.private_file import write_private
from manyhands.live.hosts.invitation import check_key

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def written_key(text: str) -> Iterator[Path]:
    """A file that only this user can read, with a key; it is removed after the context.

    Raises:
        Refused: the text is not a key.
    """
    with tempfile.TemporaryDirectory(prefix="manyhands-") as private:
        path = Path(private) / "key"
        write_private(path, text.strip() + "\n")
        with refusing():
            check_key(path)
        yield path
