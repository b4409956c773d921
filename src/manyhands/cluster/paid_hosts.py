"""Hosts that a run pays for: the one rule, for plans and for runs that were made."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def paid_workers(sizes: Mapping[str, int], used: Iterable[str]) -> int:
    """The workers whose price is paid: those that all used hosts have room for.

    A host is paid for whether its workers compute or not. A host of servers alone, for which there
    are no workers, counts as the largest.

    >>> paid_workers({"a": 4, "b": 2}, ["a", "b"]), paid_workers({"a": 4, "b": 0}, ["a", "b"])
    (6, 8)

    Args:
        sizes: by host, its workers.
        used: the hosts of the run's workers and servers.
    """
    largest = max(sizes.values(), default=0)
    return sum(sizes.get(host, 0) or largest for host in {*used})
