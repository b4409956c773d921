"""Files that wait while the disk is full: a write without space is repeated for a while."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from _typeshed import ReadableBuffer

PATIENCE = 120.0
"""Seconds for which a write waits for free space."""
_EVERY = 0.5
_BLOCK = 1 << 22


def is_full(error: OSError) -> bool:
    """Whether a write failed because the disk or the user's quota is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def _say(words: str) -> None:
    with contextlib.suppress(OSError):  # the log may be on the same disk
        sys.stderr.write(f"{words}\n")
        sys.stderr.flush()


class Rescued(OSError):  # noqa: N818 - the model is not lost
    """A file could not be written where it belongs, and is complete in another place."""


class _Patient(io.FileIO):
    """A file whose writes wait while the disk is full."""

    def __init__(
        self, path: Path, patience: float, say: Callable[[str], None], *, rescue: bool
    ) -> None:
        super().__init__(path, "wb+")
        self._path = path
        self._patience = patience
        self._say = say
        self._rescue = rescue
        self._given_up: OSError | None = None
        self.moved = ""
        """Where the file is in place of `path`; empty if it is there."""
        self.why = ""

    def write(self, data: ReadableBuffer, /) -> int:
        """Write all of the data, waiting while the disk is full."""
        view = memoryview(data).cast("B")
        if self._given_up is not None:
            # Closing a file writes what is left once more.
            raise self._given_up
        done, since = 0, 0.0
        while done < len(view):
            try:
                done += os.write(self.fileno(), view[done:])
                if since:
                    self._say(f"{self._path}: there is space again, and writing continues")
                since = 0.0
            except OSError as error:
                now = time.monotonic()
                since = since or now
                if is_full(error) and now == since:
                    self._say(
                        f"warning: {self._path} cannot be written: {error.strerror}. Free some "
                        f"space: writing is retried for {self._patience:.0f} s"
                    )
                if not is_full(error) or now - since > self._patience:
                    self._give_up(error, now - since, len(view) - done)
                    since = 0.0
                else:
                    time.sleep(min(_EVERY, self._patience))
        return done

    def _give_up(self, error: OSError, waited: float, left: int) -> None:
        """Continue in another place; raise an error if there is none, or it is not asked for."""
        if is_full(error):
            self.why = f"{error.strerror} for {waited:.0f} s"
            words = (
                f"{self.why}, with {left} bytes of a block still to be written; free space on "
                "that disk or choose another folder"
            )
        else:
            self.why = words = error.strerror or str(error)
        if self._rescue and not self.moved:
            written = os.lseek(self.fileno(), 0, os.SEEK_CUR)
            for place in _other_places(written + left):
                with contextlib.suppress(OSError):
                    self._move(place)
                    return
        self._given_up = OSError(error.errno, words, str(self._path))
        raise self._given_up from error

    def _move(self, place: Path) -> None:
        """Copy what is written to a new folder in `place`, and write there from now on."""
        folder = Path(tempfile.mkdtemp(prefix="rescued-", dir=place))
        target = os.open(folder / self._path.name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            at = 0
            while block := os.pread(self.fileno(), _BLOCK, at):
                done = 0
                while done < len(block):
                    done += os.write(target, block[done:])
                at += len(block)
            os.dup2(target, self.fileno(), inheritable=False)
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            os.close(target)
        self.moved = str(folder / self._path.name)
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)


def _other_places(size: int) -> Iterator[Path]:
    """Folders with room for so many bytes: of temporary files, the current one, home, memory."""
    for place in (tempfile.gettempdir(), ".", "~", "/dev/shm"):  # noqa: S108 - the last of several
        with contextlib.suppress(OSError, RuntimeError):
            folder = Path(place).expanduser().resolve()
            if shutil.disk_usage(folder).free > size:
                yield folder


@contextlib.contextmanager
def stored_patiently(
    path: Path,
    patience: float = PATIENCE,
    say: Callable[[str], None] = _say,
    *,
    name: str = "",
) -> Iterator[BinaryIO]:
    """Create a file for writing; it is removed if it cannot be completed.

    Args:
        path: the file.
        patience: seconds for which a write waits for space.
        say: receives what happens meanwhile.
        name: the name under which it is completed in another place, if it cannot be written here;
            empty to raise the error instead.

    Raises:
        Rescued: it is complete in another place, which the message names.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        raw = _Patient(path, patience, say, rescue=bool(name))
        with io.BufferedWriter(raw) as file:
            yield file
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        raise
    if raw.moved:
        kept = Path(raw.moved).rename(Path(raw.moved).with_name(name))
        raise Rescued(
            f"{path.with_name(name)} could not be written: {raw.why}. The trained model is in "
            f"{kept}: copy it from there"
        )
