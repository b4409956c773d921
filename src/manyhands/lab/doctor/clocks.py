"""Checks of clocks: the date, the wall clock's rate, and the clocks of other hosts."""

from __future__ import annotations

import socket
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING

from manyhands.lab.doctor.finding import Finding
from manyhands.units import seconds_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from manyhands.lab.doctor.finding import ExaminedRun, Surroundings

_EARLIEST = 1_735_689_600.0
"""Unix time of 2025-01-01, before any version of this code."""
_LATEST = 4_102_444_800.0
"""Unix time of 2100-01-01."""
_LOOK = 0.3
_APART = 0.05
"""Seconds by which the two clocks may differ over that time."""
_SKEW = 1.0
"""Seconds by which the clock of another host may differ."""
_ANSWER_WITHIN = 1.0
_NTP_EPOCH = 2_208_988_800
"""Seconds from 1900, where NTP begins, to 1970."""
_NTP = struct.Struct("!40xII")


def check_date(plan: ExaminedRun, around: Surroundings) -> Iterator[Finding]:
    """Whether the date is plausible, and not before that of files that exist."""
    now = around.wall()
    advice = "set the clock (timedatectl set-ntp true): names of folders and downloads depend on it"
    if not _EARLIEST <= now <= _LATEST:
        yield Finding("date", "error", f"the clock says {_date(now)}", advice)
        return
    folder = plan.folder.absolute()
    there = next(one for one in (folder, *folder.parents) if one.exists())
    newest = max((path.stat().st_mtime for path in (there, Path(__file__))), default=now)
    if newest > now + 1.0:
        words = f"the clock says {_date(now)}, but there are files of {_date(newest)}"
        yield Finding("date", "warning", words, advice)
    else:
        yield Finding("date", "ok", _date(now))


def check_rate(_plan: ExaminedRun, around: Surroundings) -> Iterator[Finding]:
    """Whether wall clock and monotonic clock advance alike."""
    wall, monotonic = around.wall(), around.monotonic()
    around.sleep(_LOOK)
    passed = around.monotonic() - monotonic
    apart = (around.wall() - wall) - passed
    words = f"the wall clock moved by {apart * 1000:+.0f} ms against the monotonic clock"
    if passed <= 0:
        words = "the monotonic clock stands still"
        yield Finding("clocks", "error", words, "report it to the owner of the machine")
    elif abs(apart) > _APART:
        advice = "wait until the clock is set (chronyc tracking): times of hosts would not agree"
        yield Finding("clocks", "warning", f"{words} within {seconds_words(passed)}", advice)
    else:
        yield Finding("clocks", "ok", words)


def check_skew(plan: ExaminedRun, around: Surroundings) -> Iterator[Finding]:
    """The clocks of other hosts, where a host answers requests for its time (NTP)."""
    for name in plan.hosts.names[1:] if plan.hosts else ():
        what = f"clock of {name}"
        try:
            skew = ask_time(name, around)
        except socket.gaierror:
            words = f"{name} is no name in this network, so its clock was not compared"
            yield Finding(what, "ok", words)
        except (OSError, ValueError):
            words = f"{name} does not answer on UDP port {around.time_port} (NTP): not compared"
            yield Finding(what, "ok", words)
        else:
            words = f"{name} is {abs(skew):.1f} s {'ahead' if skew > 0 else 'behind'}"
            if abs(skew) > _SKEW:
                advice = "set the clocks of all hosts by one server (NTP)"
                yield Finding(what, "warning", words, advice)
            else:
                yield Finding(what, "ok", words)


def ask_time(host: str, around: Surroundings) -> float:
    """Seconds by which the clock of another host is ahead of this one's, by an SNTP request.

    Raises:
        OSError: it does not answer.
        ValueError: its answer is none.
    """
    place = socket.getaddrinfo(host, around.time_port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(place[0], socket.SOCK_DGRAM) as line:
        line.settimeout(_ANSWER_WITHIN)
        line.connect(place[4])
        sent = around.wall()
        line.send(b"\x1b" + bytes(47))  # version 3, from a client
        answer = line.recv(512)
        back = around.wall()
    if len(answer) < _NTP.size:
        raise ValueError(f"expected {_NTP.size} bytes from {host}, got {len(answer)}")
    whole, fraction = _NTP.unpack_from(answer)
    return float(whole - _NTP_EPOCH + fraction / 2**32 - (sent + back) / 2)


def _date(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds)) + " UTC"
    except (OverflowError, ValueError, OSError):
        return f"{seconds:.0f} s since 1970"
