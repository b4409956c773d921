"""Checks of a calibration of several hosts: one that is slower, a link that is."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from manyhands.lab.calibration import read_calibration
from manyhands.lab.doctor.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from manyhands.lab.calibration import CalibratedLink, Calibration
    from manyhands.lab.doctor.finding import ExaminedRun, Surroundings

_SLOWER = 1.2
"""A host is called slower that takes so many times as long as the fastest."""
_WEAK = 0.7
"""A link is called slow that has less than this part of the usual bandwidth."""
_DISTANT, _NOTICEABLE = 5.0, 1e-3
"""A link is called distant whose latency is so many times the usual one, and so many seconds."""


def check_calibration(plan: ExaminedRun, _around: Surroundings) -> Iterator[Finding]:
    """Hosts and links that are slower than the others, by a stored calibration."""
    if plan.calibration is None:
        return
    try:
        found = read_calibration(plan.calibration)
    except ValueError as error:
        yield Finding("calibration", "error", str(error), "calibrate again")
        return
    yield from compared(found)


def compared(found: Calibration) -> Iterator[Finding]:
    """What is wrong or slow among the hosts of a calibration."""
    if not found.hosts:
        advice = "name them: manyhands calibrate script.py --hosts 'a:1, b:1'"
        yield Finding("hosts", "ok", "the calibration has one host only", advice)
        return
    least = min(host.seconds for host in found.hosts)
    for host in found.hosts:
        factor = host.seconds / least
        words = f"{host.name} takes {factor:.1f} times as long as the fastest host for a batch"
        advice = "give it fewer samples: allreduce(shares=by_speed); or use asynchronous()"
        if factor > _SLOWER:
            yield Finding("speed of hosts", "warning", words, advice)
    yield from _links(found.links)


def _links(links: tuple[CalibratedLink, ...]) -> Iterator[Finding]:
    usual = statistics.median(link.bandwidth for link in links)
    near = statistics.median(link.latency for link in links)
    wrong = 0
    for link in links:
        name = f"{link.sender} to {link.receiver}"
        if link.bandwidth < _WEAK * usual:
            wrong += 1
            words = f"{name}: {mbits(link.bandwidth)}, where {mbits(usual)} is usual"
            yield Finding("links", "warning", words, "look at its cable, its port and its switch")
        if link.latency > max(_DISTANT * near, _NOTICEABLE):
            wrong += 1
            words = f"{name}: {1e3 * link.latency:.1f} ms, where {1e3 * near:.2f} ms is usual"
            yield Finding("links", "warning", words, "see whether it goes another way, or is full")
    if not wrong:
        words = f"{len(links)} directions with about {mbits(usual)} and {1e3 * near:.2f} ms"
        yield Finding("links", "ok", words)


def mbits(bandwidth: float) -> str:
    """A measured bandwidth as text.

    >>> mbits(11.95e6)
    '95.6 Mbit/s'
    """
    return f"{8e-6 * bandwidth:,.3g} Mbit/s"
