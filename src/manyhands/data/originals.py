"""Original files of datasets: search, download and verification.

An original is searched in the user's folder (`MANYHANDS_DATA`), then in the cache folder, which has
the same layout, then downloaded into the cache. In all cases its bytes are compared with the
published checksums before they are used.
"""

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
import zlib
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from manyhands.data.download import download
from manyhands.data.folders import DATA, cache_folder, data_folder
from manyhands.data.sharing import replacing

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass(frozen=True)
class Original:
    """One published file."""

    name: str
    """Its file name."""
    folders: tuple[str, ...]
    """Subfolders of a data folder in which it is searched; a download goes to the first."""
    size: int
    """Size in bytes: a download never writes more."""
    sha256: str
    published: tuple[str, str] | None = None
    """Another published checksum, as (algorithm, hexadecimal digest)."""
    mirrors: tuple[str, ...] = ()
    """Its addresses, tried in order."""
    archive: Original | None = None
    """The tar file that contains it, if it is not published by itself."""


class DataMissingError(FileNotFoundError):
    """Files of a dataset are not on this host, and could not be downloaded."""


def read(originals: Sequence[Original], whole: Sequence[Original] = ()) -> list[bytes]:
    """The verified bytes of each original, downloaded first if this host does not have them.

    Callers hold the dataset's lock, because of the downloads.

    Args:
        originals: those to read.
        whole: all of the dataset; a message about missing files names all that are missing.
    """
    absent = [original for original in originals if _find(original) is None]
    for needed in dict.fromkeys(original.archive or original for original in absent):
        if _find(needed) is None:
            _fetch(needed, [one for one in whole or originals if _find(one) is None])
    return [_content(original) for original in originals]


def _find(original: Original) -> Path | None:
    roots = [root for root in (data_folder(), cache_folder()) if root is not None]
    places = (root / folder / original.name for root in roots for folder in original.folders)
    return next((place for place in places if place.is_file()), None)


def _fetch(original: Original, absent: Sequence[Original]) -> None:
    path = cache_folder() / original.folders[0] / original.name
    failures = []
    for url in original.mirrors:
        # At once: a host without a network may wait for half a minute for an answer.
        print(f"downloading {url} ({original.size / 1e6:.1f} MB)", file=sys.stderr, flush=True)
        try:
            with replacing(path) as file:
                download(url, file, original.size)
                file.seek(0)
                _verify(file, original, url)
        except (OSError, ValueError) as error:
            failures.append(f"  {url}: {error}")
        else:
            return
    names = ", ".join(missing.name for missing in absent)
    raise DataMissingError(
        f"{original.name} is not on this host and could not be downloaded:\n"
        + "\n".join(failures)
        + f"\nWithout a network, copy {names} to a folder {original.folders[0]!r} and set "
        f"{DATA} to the folder that contains it."
    )


def _content(original: Original) -> bytes:
    path = _find(original)
    if path is not None:
        content = _whole(path, original)
        _verify(io.BytesIO(content), original, str(path))
        return content
    archive = _find(original.archive) if original.archive is not None else None
    if archive is None:
        raise FileNotFoundError(f"{original.name} was deleted while it was read: try again")
    content = _member(archive, original)
    _verify(io.BytesIO(content), original, f"{original.name} in {archive}")
    return content


def _whole(path: Path, original: Original) -> bytes:
    # The size first: it is free, and a wrong file may be larger than memory.
    size = path.stat().st_size
    if size != original.size:
        raise ValueError(
            f"{path} is not the original: expected {original.size:,} bytes, got {size:,}; "
            "replace or delete it"
        )
    return path.read_bytes()


def _member(archive: Path, original: Original) -> bytes:
    """The bytes of one file of an archive, without unpacking it to disk."""
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                if member.isfile() and member.name.rpartition("/")[2] == original.name:
                    file = tar.extractfile(member)
                    if file is not None:
                        return file.read(original.size + 1)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise ValueError(f"{archive} cannot be read ({error}); replace or delete it") from error
    raise ValueError(f"{archive} has no {original.name}; replace or delete it")


def _verify(content: IO[bytes], original: Original, origin: str) -> None:
    expected = [("sha256", original.sha256)]
    if original.published is not None:
        expected.append(original.published)
    for algorithm, digest in expected:
        content.seek(0)
        found = _digest(content, algorithm)
        if found != digest:
            raise ValueError(
                f"{origin} is not the original: expected {algorithm} {digest}, got {found}; "
                "replace or delete it"
            )


def _digest(content: IO[bytes], algorithm: str) -> str:
    # MD5 and SHA-1 are published checksums; security relies on SHA-256.
    digest = hashlib.new(algorithm, usedforsecurity=False)
    while chunk := content.read(1 << 20):
        digest.update(chunk)
    return digest.hexdigest()
