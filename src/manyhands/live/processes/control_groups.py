"""Control groups of this process: the memory, processes and cores that a container may take.

Both versions are read: the single hierarchy of version 2, and the folder per controller of
version 1. A limit of any group on the path from the root applies.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_UNLIMITED = 1 << 60
"""Version 1 writes a number near 2**63 where there is no limit."""


@dataclass(frozen=True)
class ControlGroups:
    """The control groups of a process.

    Example:
        >>> cores = ControlGroups().cores()
        >>> cores is None or cores > 0
        True
    """

    root: Path = Path("/sys/fs/cgroup")
    """Where the hierarchies are mounted."""
    own: Path = Path("/proc/self/cgroup")
    """The file that names the groups of the process."""

    def memory_left(self) -> int | None:
        """Bytes that processes may still take, page cache that can be freed included.

        Returns:
            None if there is no limit.
        """
        left = []
        for folder in self._folders("memory"):
            most = _number(folder / "memory.max", folder / "memory.limit_in_bytes")
            used = _number(folder / "memory.current", folder / "memory.usage_in_bytes")
            if most is not None and used is not None:
                left.append(max(0, most - used + _evictable(folder)))
        return min(left, default=None)

    def processes_left(self) -> int | None:
        """Processes and threads that may still be started; None if there is no limit."""
        left = []
        for folder in self._folders("pids"):
            most, used = _number(folder / "pids.max"), _number(folder / "pids.current")
            if most is not None and used is not None:
                left.append(max(0, most - used))
        return min(left, default=None)

    def cores(self) -> float | None:
        """Cores whose time the processes may use; None if there is no quota."""
        return min(
            (quota for folder in self._folders("cpu") for quota in _quota(folder)), default=None
        )

    def _folders(self, controller: str) -> Iterator[Path]:
        """The folders of this process's group and of the groups above it."""
        try:
            lines = self.own.read_text(encoding="ascii").splitlines()
        except OSError:  # a system without control groups
            return
        for line in lines:
            number, controllers, path = line.split(":", 2)
            if number == "0":
                top = self.root
            elif controller in controllers.split(","):
                top = self.root / controller
            else:
                continue
            group = top / path.lstrip("/")
            for folder in (group, *group.parents):
                # In a container the path may be that of the host, of which only the end is there.
                if folder.is_dir():
                    yield folder
                if folder == top:
                    break


def _number(*files: Path) -> int | None:
    """The number in the first file that exists; None if it is no limit or cannot be read."""
    for file in files:
        try:
            text = file.read_text(encoding="ascii").strip()
        except OSError:
            continue
        return int(text) if text.isdecimal() and int(text) < _UNLIMITED else None
    return None


def _evictable(group: Path) -> int:
    """Bytes of page cache in a group, which the kernel can free."""
    try:
        lines = (group / "memory.stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    facts = {name: int(value) for name, _, value in (line.partition(" ") for line in lines)}
    return facts.get("total_inactive_file", facts.get("inactive_file", 0))


def _quota(folder: Path) -> Iterator[float]:
    try:
        quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
        if quota != "max":
            yield int(quota) / int(period)
    except (OSError, ValueError):
        quota_us = _number(folder / "cpu.cfs_quota_us")
        period_us = _number(folder / "cpu.cfs_period_us")
        if quota_us and period_us:
            yield quota_us / period_us
