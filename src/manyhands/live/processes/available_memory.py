"""The memory of this host that processes may still take."""

from __future__ import annotations

from pathlib import Path

from manyhands.live.processes.control_groups import ControlGroups


def available(groups: ControlGroups | None = None) -> tuple[int, int]:
    """Bytes of memory that processes may still take, and of swap space.

    A container has less than the machine: a limit of the process's control groups counts.
    """
    facts = memory_facts()
    left = (groups or ControlGroups()).memory_left()
    free = facts["MemAvailable"]
    return free if left is None else min(free, left), facts.get("SwapFree", 0)


def memory_facts() -> dict[str, int]:
    """The facts of /proc/meminfo, in bytes."""
    facts: dict[str, int] = {}
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        facts[name] = int(value.split()[0]) * 1024
    return facts
