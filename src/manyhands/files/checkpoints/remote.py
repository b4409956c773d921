"""Checkpoints in an object store or on another file system, by a URL that fsspec understands.

Object stores have no rename: a generation is whole once it has its last file, `manifest.sha256`,
and its removal begins with that file.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from typing import TYPE_CHECKING, Any, Final

from manyhands.files.checkpoints.manifest import MANIFEST, MANIFEST_SUM
from manyhands.files.checkpoints.reading import DIGITS, Checkpoint, DamagedCheckpoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_ENDING: Final = 600.0
"""Seconds for which the end of a run waits for the last upload."""


def is_url(text: object) -> bool:
    """Whether a text is a URL, not a path.

    >>> is_url("s3://bucket/run"), is_url("runs/mnist")
    (True, False)
    """
    return "://" in str(text)


class RemoteCheckpoints:
    """The generations at a URL.

    Args:
        url: any URL of fsspec, such as `s3://bucket/run`; its library must be installed.

    Raises:
        ModuleNotFoundError: fsspec, or what it needs for this URL, is not installed.
        ValueError: fsspec does not know this kind of URL.
    """

    def __init__(self, url: str) -> None:
        try:
            from fsspec.core import url_to_fs  # noqa: PLC0415 - an extra
        except ModuleNotFoundError:
            raise ModuleNotFoundError(
                f"checkpoints at {url} need fsspec: pip install 'manyhands[remote]'"
            ) from None
        try:
            found: tuple[Any, str] = url_to_fs(url)
        except ImportError as error:
            raise ModuleNotFoundError(f"checkpoints at {url}: {error}") from error
        except ValueError as error:
            raise ValueError(f"checkpoints at {url}: {error}") from error
        self.url = url
        self._store, root = found
        self._root = root.rstrip("/")

    def generations(self) -> list[str]:
        """The names of the generations that are complete, the latest first."""
        self._store.invalidate_cache()
        ends = self._store.glob(f"{self._root}/*/{MANIFEST_SUM}")
        names = {str(path).split("/")[-2] for path in ends}
        return sorted((one for one in names if len(one) == DIGITS and one.isdigit()), reverse=True)

    def upload(self, generation: Path, keep: int) -> None:
        """Copy a generation to the URL, and remove those before the last `keep`."""
        into = f"{self._root}/{generation.name}"
        self._store.makedirs(into, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            # Of an earlier attempt, after as many samples.
            self._store.rm_file(f"{into}/{MANIFEST_SUM}")
        names = sorted(path.name for path in generation.iterdir())
        for name in (*(one for one in names if one != MANIFEST_SUM), MANIFEST_SUM):
            self._store.put_file(str(generation / name), f"{into}/{name}")
        for old in self.generations()[keep:]:
            self._store.rm_file(f"{self._root}/{old}/{MANIFEST_SUM}")
            self._store.rm(f"{self._root}/{old}", recursive=True)

    def download(self, folder: Path) -> Checkpoint | None:
        """Copy the last whole generation to a folder; None if the URL has none.

        Args:
            folder: gets the generation as a subfolder; a copy that is there already is used.

        Raises:
            DamagedCheckpoint: no generation at the URL is whole.
        """
        damaged: list[str] = []
        for name in self.generations():
            try:
                found = self._fetched(name, folder)
            except (DamagedCheckpoint, OSError) as error:
                damaged.append(f"{name}: {error}")
            else:
                found.skipped = damaged
                return found
        if damaged:
            raise DamagedCheckpoint(f"no checkpoint at {self.url} is whole: {'; '.join(damaged)}")
        return None

    def _fetched(self, name: str, folder: Path) -> Checkpoint:
        local = folder / name
        with contextlib.suppress(DamagedCheckpoint):
            known = Checkpoint(local)
            if self._store.cat_file(f"{self._root}/{name}/{MANIFEST_SUM}") == (
                (local / MANIFEST_SUM).read_bytes()
            ):
                known.verify()
                return known
        shutil.rmtree(local, ignore_errors=True)
        local.mkdir(parents=True)
        for one in (MANIFEST, MANIFEST_SUM):
            self._store.get_file(f"{self._root}/{name}/{one}", str(local / one))
        # Only files that the manifest names: it has been compared with its SHA-256.
        for one in Checkpoint(local).manifest.files:
            self._store.get_file(f"{self._root}/{name}/{one}", str(local / one))
        found = Checkpoint(local)
        found.verify()
        return found


class Uploads:
    """Copies generations to a URL, one after the other, while training goes on.

    If generations are stored faster than they are copied, some are left out: the latest one is
    copied next.

    Args:
        url: where to.
        keep: number of generations that are kept there.
        say: reports a failure, which does not end the run.
    """

    def __init__(self, url: str, keep: int, say: Callable[[str], None]) -> None:
        self._remote = RemoteCheckpoints(url)
        self._keep = keep
        self._say = say
        self._changed = threading.Condition()
        self._next: Path | None = None
        self.busy: Path | None = None
        """The generation that is being copied, which must not be removed."""
        self._thread: threading.Thread | None = None

    def add(self, generation: Path) -> None:
        """Copy a generation as soon as the one before is copied."""
        with self._changed:
            self._next = generation
            if self._thread is None:
                self._thread = threading.Thread(target=self._copy, name="upload", daemon=True)
                self._thread.start()

    def needs(self, generation: Path) -> bool:
        """Whether a generation is being copied, or will be next."""
        return generation in (self.busy, self._next)

    def finish(self) -> None:
        """Wait for the last generation to be copied."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._thread is None, _ENDING):
                self._say(f"warning: a checkpoint is not at {self._remote.url} yet: it is left out")

    def _copy(self) -> None:
        while True:
            with self._changed:
                self.busy, self._next = self._next, None
                if self.busy is None:
                    self._thread = None
                    self._changed.notify_all()
                    return
            try:
                self._remote.upload(self.busy, self._keep)
            except Exception as error:  # noqa: BLE001 - stores raise errors of their own libraries
                words = str(error) or type(error).__name__
                self._say(
                    f"warning: the checkpoint {self.busy.name} was not copied to "
                    f"{self._remote.url}: {words}"
                )
