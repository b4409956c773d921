"""Invitation of other hosts: the run's address and key, and the commands to join with."""

from __future__ import annotations

import contextlib
import os
import shlex
from typing import TYPE_CHECKING

from manyhands.failure import RunFailed
from manyhands.files.private_file import exposure
from manyhands.live.hosts.shared_folder import Marker
from manyhands.live.hosts.slurm import JoinSteps, listening_address
from manyhands.live.hosts.takeover import taken_over
from manyhands.transport.interfaces import own_address, read_place, write_place
from manyhands.transport.listeners import listen
from manyhands.transport.security import JobKey

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from manyhands.live.hosts.host_list import Hosts

LINES = "join"
"""The file in a run's folder with one `manyhands join` command per host; removed after the run."""
_KEY = "key"


def choose_address(given: str | None, hosts: Hosts | None = None) -> tuple[str, int]:
    """The address at which the first host listens: the given one, else that of its default route.

    In an allocation of Slurm it is by default the address on the route to the second node.

    Raises:
        ValueError: this host cannot listen there.
    """
    if given is not None:
        address, port = read_place(given, 0)
    elif hosts is not None and hosts.started_by and len(hosts.names) > 1:
        address, port = listening_address(hosts), 0
    else:
        address, port = own_address(), 0
    try:
        listen(address, port).close()
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise ValueError(
            f"this host cannot listen at {write_place(address, port) if port else address} "
            f"({why}): --listen takes one of its own addresses and a free port"
        ) from None
    return address, port


def check_key(key: Path) -> None:
    """Raise ValueError, with the fix, if a file does not contain a key, or others can read it."""
    if not key.is_file():
        raise ValueError(f"key file {key} does not exist: copy it from the first host")
    try:
        JobKey.read(key)
    except OSError as error:
        raise ValueError(
            f"{key} cannot be read ({error.strerror}): use a key of your own"
        ) from None
    except ValueError:
        raise ValueError(
            f"{key} does not contain the key of a run: copy it from the first host"
        ) from None
    if found := exposure(key):
        raise ValueError(
            f"{key} has {found}: other users can read or change it: chmod 600 {key}, and use a new "
            "key if others may have read it"
        )


@contextlib.contextmanager
def inviting(
    folder: Path, hosts: Hosts | None, script: Path, key: Path | None
) -> Iterator[Invitation | None]:
    """The invitation for the other hosts, see `Invitation`; None for a run on one host."""
    if hosts is None or len(hosts.names) == 1:
        yield None
        return
    invitation = Invitation(folder.resolve(), hosts, script, key)
    try:
        yield invitation
    finally:
        invitation.close()


class Invitation:
    """The job's key and the commands to join with, in the run's folder until the run is over.

    Args:
        folder: the run's folder.
        hosts: the hosts of the run; the first one has started it.
        script: the script that is executed.
        key: a key file that all hosts have already; None creates a new key.
    """

    def __init__(self, folder: Path, hosts: Hosts, script: Path, key: Path | None = None) -> None:
        self._hosts = hosts
        self._script = script
        self._lines = folder / LINES
        self._new_key = JobKey.new() if key is None else None
        self.key = folder / _KEY if key is None else key.resolve()
        self._place: str | None = None
        """Address and port of the coordinator, once they are known; the run keeps them."""
        self._is_open = False
        self._steps: JoinSteps | None = None
        self._attempt = str(os.getpid())
        self._marker = Marker(folder, self._attempt)

    def address(self, given: str | None) -> tuple[str, int]:
        """The address at which the first host listens: as before, if the run goes back."""
        return choose_address(self._place or given, self._hosts)

    def write(self) -> None:
        """Write the key, if it is a new one, and the marker of the run; again if it goes back."""
        if self._new_key is not None:
            self.key.unlink(missing_ok=True)
            self._new_key.write(self.key)
        self._marker.create()
        self._is_open = False

    def beat(self) -> None:
        """Show the other hosts that this one is alive.

        Raises:
            RunFailed: they took it for lost, and continue the run without it.
        """
        if not self._marker.beat():
            return
        decision = taken_over(self._marker.path.parent, self._attempt)
        if decision is not None:
            raise RunFailed(
                f"this host did not answer for so long that {decision.first} took its place: the "
                f"run continues there, in the same folder"
            )

    def open(self, outside: str, *, begun: bool = False) -> str:
        """Write the commands, with the coordinator's address; return the message to show, once.

        In an allocation of Slurm the commands are executed on the other nodes.

        Args:
            outside: the coordinator's address; empty if it is not known yet.
            begun: whether all hosts have joined.

        Raises:
            RunFailed: a node that was started has ended before the run began.
        """
        if self._steps is not None and not begun:
            self._steps.check()
        if self._is_open or not outside:
            return ""
        self._is_open = True
        self._place = place = outside.removeprefix("tcp://")
        if self._steps is not None:
            return ""
        if self._hosts.started_by:
            about = (self._lines.parent, self._hosts, place, self.key, self._script)
            self._steps = JoinSteps(*about)
            return self._steps.words
        commands = {name: self._command(place, name) for name in self._hosts.names[1:]}
        # The file appears with its whole content.
        half = self._lines.with_suffix(".half")
        half.write_text("".join(f"{line}\n" for line in commands.values()), encoding="utf-8")
        half.replace(self._lines)
        words = (
            f"This run waits for {', '.join(commands)}. Copy the script and the key file "
            f"{_short(self.key)} to each host (keep the key secret), and run there:"
        )
        return "\n".join([words, *(f"  {line}" for line in commands.values())])

    def _command(self, place: str, name: str) -> str:
        count = len(self._hosts.ranks(name))
        options = ("--key-file", _short(self.key), "--as", name)
        script = (_short(self._script), *(("--workers", str(count)) if count else ()))
        return shlex.join(["manyhands", "join", place, *options, *script])

    def close(self) -> None:
        """Remove the commands and a key that was created for this run; end the steps of Slurm."""
        if self._steps is not None:
            self._steps.close()
        if self._new_key is not None:
            self.key.unlink(missing_ok=True)
        self._lines.unlink(missing_ok=True)
        self._marker.remove()


def _short(path: Path) -> str:
    """A path relative to the working directory, if it is inside it."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
