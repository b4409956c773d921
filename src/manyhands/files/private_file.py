"""Files that only their owner can read."""

from __future__ import annotations

import os
import secrets
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Write a file of mode 0600, in the place of any other of this name.

    It is created exclusively under another name and renamed. So the mode of an existing file is not
    kept, a symbolic link is replaced and not followed, and no process of another user can open the
    file before it has its mode.
    """
    new = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    # 0600 at most: umask can only take bits away.
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def exposure(path: Path) -> str:
    """By which mode other users can read or change a file; empty if they cannot.

    A file of another owner that this user reads as a member of its group, such as a Secret that is
    mounted in a pod, is not exposed by that.
    """
    about = path.stat()
    mode = stat.S_IMODE(about.st_mode)
    others = 0o007 if about.st_uid != os.geteuid() and not mode & 0o020 else 0o077
    return f"mode {mode:04o}" if mode & others else ""
