"""Checks of disks and files: the run's folder, temporary files, data, the key."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from manyhands.data.folders import DATA, cache_folder, data_folder
from manyhands.files.disk_space import is_full
from manyhands.files.run_folders import check_free
from manyhands.lab.doctor.finding import Finding
from manyhands.live.hosts.invitation import check_key
from manyhands.reports.formatting import size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from manyhands.lab.doctor.finding import ExaminedRun, Surroundings

_RECORDS = 64 << 20
"""Bytes of traces and logs of a run that is not very long."""
_LITTLE = 1 << 30
"""Free bytes below which a warning is given."""
_JOURNAL_IN_FILE = 128 << 20
"""Bytes of parameters above which servers keep their journals in files."""
_PROBE = 1 << 20
_SOCKET_PATH = 107
"""Characters that the path of a Unix socket may have."""
_PRIVATE = len("/manyhands-12345678/coordinator")
_REMOTE = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "fuse.sshfs", "fuse.s3fs"}
_POOR = {"vfat", "exfat", "msdos", "fuseblk"}
"""File systems without permissions, so that a key in them is readable by others."""


def check_run_folder(plan: ExaminedRun, _around: Surroundings) -> Iterator[Finding]:
    """The run's folder: whether it is free, can be written, and has room."""
    name, folder = "run folder", plan.folder
    if plan.output is not None:
        try:
            check_free(folder)
        except ValueError as error:
            yield Finding(name, "error", str(error), "choose another folder with --output")
            return
    place = _existing(folder)
    try:
        _try_to_write(place)
    except OSError as error:
        advice = "choose a folder on another disk with --output"
        if is_full(error):
            advice = f"free some space on the disk of {place}, or {advice}"
        yield Finding(name, "error", f"{place} cannot be written ({error.strerror})", advice)
        return
    facts = os.statvfs(place)
    free, needed = facts.f_bavail * facts.f_frsize, _needed(plan)
    words = f"{size(free)} are free in {place}, the run needs about {size(needed)}"
    advice = "free some space, or choose another disk with --output"
    if free < needed:
        yield Finding(name, "error", words, advice)
    elif free < max(_LITTLE, 2 * needed):
        yield Finding(name, "warning", words, advice)
    else:
        yield Finding(name, "ok", words)
    if facts.f_files and facts.f_favail < 1000:
        words = f"{facts.f_favail} more files can be created in {place}"
        yield Finding("inodes", "error", words, "delete files there, or choose another disk")


def check_file_system(plan: ExaminedRun, _around: Surroundings) -> Iterator[Finding]:
    """The type of the run folder's file system, and whether it can do what a run does."""
    place = _existing(plan.folder)
    kind = file_system(place)
    if kind in _REMOTE:
        yield Finding(
            "file system",
            "warning",
            f"{place} is on {kind}, a network",
            "choose a local disk with --output: traces and journals are written every second",
        )
    elif kind in _POOR:
        yield Finding(
            "file system",
            "warning",
            f"{place} is on {kind}, which has no permissions",
            "choose another disk with --output: the key of a run would be readable by others",
        )
    else:
        yield Finding("file system", "ok", f"{place} is on {kind}")


def check_temporary(_plan: ExaminedRun, _around: Surroundings) -> Iterator[Finding]:
    """The folder of temporary files, where the processes of a run have their sockets."""
    folder = Path(tempfile.gettempdir())
    length = len(str(folder)) + _PRIVATE
    if length > _SOCKET_PATH:
        yield Finding(
            "temporary files",
            "error",
            f"the path {folder} is too long: a socket in it has {length} characters, and "
            f"{_SOCKET_PATH} are allowed",
            "set TMPDIR to a shorter path, such as /tmp",
        )
        return
    try:
        with tempfile.TemporaryDirectory(prefix="manyhands-") as private:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(f"{private}/socket")
            _try_to_write(Path(private))
    except OSError as error:
        words = f"no socket can be created in {folder} ({error.strerror})"
        advice = "set TMPDIR to a writable folder on a local disk"
        yield Finding("temporary files", "error", words, advice)
    else:
        yield Finding("temporary files", "ok", f"sockets can be created in {folder}")


def check_data(_plan: ExaminedRun, _around: Surroundings) -> Iterator[Finding]:
    """The folder of data that the user named, and the cache."""
    try:
        folder = data_folder()
    except FileNotFoundError as error:
        advice = f"correct {DATA}, or unset it to download"
        yield Finding("data folder", "error", str(error), advice)
    else:
        if folder is not None and not os.access(folder, os.R_OK | os.X_OK):
            words = f"{folder} ({DATA}) cannot be read"
            yield Finding("data folder", "error", words, "change its permissions")
        else:
            yield Finding("data folder", "ok", f"{folder or f'{DATA} is not set'}")
    place = _existing(cache_folder())
    try:
        _try_to_write(place)
    except OSError as error:
        yield Finding(
            "cache folder",
            "warning",
            f"{place} cannot be written ({error.strerror})",
            "set MANYHANDS_CACHE to a writable folder: decoded data are stored there",
        )
    else:
        yield Finding("cache folder", "ok", f"{place} can be written and locked")


def check_key_file(plan: ExaminedRun, _around: Surroundings) -> Iterator[Finding]:
    """The key of the run: whether it is one, and whether only its owner can read it."""
    key = plan.key_file
    if key is None:
        return
    try:
        check_key(key)
        mode = stat.S_IMODE(key.stat().st_mode)
    except (OSError, ValueError) as error:
        fact, _, advice = str(error).rpartition(": ")
        yield Finding("key file", "error", fact, advice)
    else:
        yield Finding("key file", "ok", f"{key} has mode {mode:04o}")


def file_system(path: Path) -> str:
    """The type of the file system that holds a path, as in `ext4`.

    >>> file_system(Path("/proc"))
    'proc'
    """
    path, found = path.resolve(), ("", "an unknown file system")
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _, place, kind, *_ = line.split(" ")
        place = place.encode().decode("unicode_escape")
        # A later mount hides an earlier one at the same place.
        if path.is_relative_to(place) and len(place) >= len(found[0]):
            found = (place, kind)
    return found[1]


def _needed(plan: ExaminedRun) -> int:
    """Bytes that the run writes: traces, logs, the model, and journals that are in files."""
    needed = _RECORDS + 2 * plan.model_bytes
    if plan.job is not None and plan.needs.server_processes and plan.job.durability != "none":
        in_files = plan.job.durability == "power" or plan.model_bytes > _JOURNAL_IN_FILE
        needed += plan.needs.server_processes * (1 << 30) * in_files
    return needed


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    folder = folder.absolute()
    return next(one for one in (folder, *folder.parents) if one.exists())


def _try_to_write(folder: Path) -> None:
    """Do in a folder what a run does: write, synchronise, lock, rename."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".manyhands-", delete=False) as file:
        path = Path(file.name)
        try:
            file.write(bytes(_PROBE))
            file.flush()
            os.fsync(file.fileno())
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path = path.rename(path.with_suffix(".renamed"))
        finally:
            path.unlink(missing_ok=True)
