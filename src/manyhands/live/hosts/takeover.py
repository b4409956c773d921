"""Takeover: the hosts that remain when the first host is lost agree on one that continues the run.

They meet in the run's folder, which they share with the first host and which has the checkpoint
from which the run continues. Each enters its name in a folder beside the checkpoints and then
watches the first host's marker for some seconds. If that changes, the first host is alive and only
cannot be reached: no host takes over. Otherwise the first of the hosts that entered their names, in
the order of the run, writes the decision: who is the first host now, where it listens, and which
hosts take part. The decision is a file that only one of them can create, so there is never more
than one. A first host that was stopped and goes on later finds the decision and ends its run.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

import msgspec

from manyhands.failure import RunFailed
from manyhands.files.run_folders import EARLIER
from manyhands.live.hosts.shared_folder import marker_in, number_in
from manyhands.transport.interfaces import write_place
from manyhands.transport.listeners import listen

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from manyhands.live.hosts.host_list import Hosts

_WATCHED = 10.0
"""Seconds for which the marker is watched, and in which the other hosts enter their names. They
notice the loss within 5 s of each other."""
_TURN = 10.0
"""Seconds that a host waits for the decision of one before it, which may be lost as well."""
_POLL = 0.1
_DECISION = ".decision"
_LARGEST = 1 << 20
"""Bytes of a decision."""


class Takeover(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the run continues."""

    first: str
    """The name of the new first host."""
    place: str
    """The address and port at which it listens."""
    hosts: tuple[tuple[str, int], ...]
    """The hosts that take part, the new first one first, each with its number of workers."""


def meeting_place(folder: Path, attempt: str) -> Path:
    """The folder in which the hosts of a run enter their names."""
    return folder / f".takeover-{attempt}"


def taken_over(folder: Path, attempt: str) -> Takeover | None:
    """The decision to continue a run without its first host, if there is one.

    Args:
        folder: the run's folder.
        attempt: distinguishes the run from earlier ones in the folder.
    """
    # The run that continues sets aside what it finds in the folder.
    name = meeting_place(folder, attempt).name
    for path in (folder / name, *folder.glob(f"{EARLIER}/*/{name}")):
        with contextlib.suppress(FileNotFoundError), (path / _DECISION).open("rb") as file:
            return msgspec.json.decode(file.read(_LARGEST), type=Takeover)
    return None


def agree(
    folder: Path,
    attempt: str,
    hosts: Hosts,
    host: str,
    address: str,
    watched: float = _WATCHED,
    turn: float = _TURN,
) -> Takeover:
    """Agree with the other hosts on how the run continues, now that the first host is silent.

    Args:
        folder: the run's folder, which all of them see.
        attempt: distinguishes the run from earlier ones in the folder.
        hosts: the hosts of the run, the lost one first.
        host: this host.
        address: this host's address.
        watched: seconds for which the first host's marker is watched.
        turn: seconds that a host waits for the decision of one before it.

    Raises:
        RunFailed: the first host is alive, or the others continue without this host.
    """
    meeting, marker = meeting_place(folder, attempt), marker_in(folder, attempt)
    # Before this host enters its name: any change from here on shows that the first host is alive.
    before = number_in(marker)
    decision = taken_over(folder, attempt)
    if decision is None:
        meeting.mkdir(exist_ok=True)
        (meeting / host).touch()

    def present() -> list[str]:
        return [name for name in hosts.names[1:] if (meeting / name).exists()]

    def is_decided() -> bool:
        return taken_over(folder, attempt) is not None

    def is_alive() -> bool:
        return number_in(marker) not in (b"", before)

    _until(lambda: is_decided() or is_alive(), watched)
    # A decision stands, also if the first host goes on now: it finds the decision and ends
    # (`docs/decisions/0072-no-single-point.md`).
    if is_alive() and not is_decided():
        # Taken back: another host would name this one in its decision and wait for it.
        (meeting / host).unlink(missing_ok=True)
        raise RunFailed(
            "the first host still writes to the run's folder: it is cut off, not lost, and no "
            "other host takes its place; join again when the network is back"
        )
    if host in (entered := present()):
        # In the order of the run, so that in most cases only one host tries; a host before this one
        # may be lost as well, so it is not waited for longer.
        _until(is_decided, entered.index(host) * turn)
    if not is_decided():
        _decide(meeting, _decision(hosts, host, present(), address))
    # Read again: another host may have been the first to write one.
    decision = taken_over(folder, attempt)
    if decision is None or host not in dict(decision.hosts):
        raise RunFailed("the other hosts continue the run without this one")
    return decision


def _decision(hosts: Hosts, host: str, present: list[str], address: str) -> Takeover:
    counts = dict(hosts.counts)
    order = [host, *(name for name in present if name != host)]
    with listen(address) as listener:
        port = listener.getsockname()[1]
    return Takeover(host, write_place(address, port), tuple((one, counts[one]) for one in order))


def _decide(meeting: Path, decision: Takeover) -> None:
    """Write a decision, unless there is one; the file appears with its whole content."""
    half = meeting / f"{_DECISION}-{decision.first}"
    half.write_bytes(msgspec.json.encode(decision))
    try:
        # A link, because it fails if there is a decision already; a rename would replace it.
        os.link(half, meeting / _DECISION)
    except FileExistsError:
        pass
    finally:
        half.unlink()


def _until(is_so: Callable[[], bool], seconds: float) -> None:
    """Wait until something is so, for some seconds at most."""
    deadline = time.monotonic() + seconds
    while not is_so() and time.monotonic() < deadline:
        time.sleep(_POLL)
