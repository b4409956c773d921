"""Folders of original and decoded data, from environment variables."""

from __future__ import annotations

import os
from pathlib import Path

DATA = "MANYHANDS_DATA"
CACHE = "MANYHANDS_CACHE"


def data_folder() -> Path | None:
    """The folder of originals that the user named in `MANYHANDS_DATA`; it may be read-only."""
    named = os.environ.get(DATA)
    if not named:
        return None
    folder = Path(named).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{DATA} names {named!r}, which is not a folder: correct it, or unset it to download"
        )
    return folder


def cache_folder() -> Path:
    """The folder for downloads and decoded arrays; it need not exist yet.

    `MANYHANDS_CACHE`, else `$XDG_CACHE_HOME/manyhands`, else `~/.cache/manyhands`.
    """
    named = os.environ.get(CACHE)
    if named:
        return Path(named).expanduser()
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "manyhands"
