"""How other hosts come to a run: where they find it, and the line that makes them join."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from manyhands.transport.interfaces import own_address, read_place
from manyhands.transport.listeners import listen
from manyhands.transport.security import JobKey

if TYPE_CHECKING:
    from pathlib import Path

    from manyhands.live.hosts.host_list import Hosts

LINES = "join"
"""The file in a run's folder with one command per host, while the run lasts."""
_KEY = "key"


def choose_address(told: str | None) -> tuple[str, int]:
    """Where the first host listens for the others: as told, else on its default route.

    Raises:
        ValueError: that is not possible.
    """
    address, port = (own_address(), 0) if told is None else read_place(told, 0)
    try:
        listen(address, port).close()
    except OSError as error:
        raise ValueError(
            f"this host cannot listen at {address}{f':{port}' if port else ''} "
            f"({error.strerror}): --listen takes one of its own addresses and a free port"
        ) from None
    return address, port


def check_key(key: Path) -> None:
    """Raise ValueError, naming the fix, if a file holds no key."""
    if not key.is_file():
        raise ValueError(f"there is no file {key}: copy it from the first host")
    try:
        JobKey.read(key)
    except ValueError:
        raise ValueError(f"{key} holds no key of a run: copy it from the first host") from None


class Invitation:
    """The job's key and the lines to join with, in the run's folder until the run is over.

    Args:
        folder: the run's.
        hosts: all that take part; the first has begun the run.
        script: what it trains.
        key: a file that all hosts have already, in place of a new key.
    """

    def __init__(self, folder: Path, hosts: Hosts, script: Path, key: Path | None = None) -> None:
        self._hosts = hosts
        self._script = script
        self._lines = folder / LINES
        self._is_new = key is None
        self.key = folder / _KEY if key is None else key.resolve()
        if self._is_new:
            self.key.unlink(missing_ok=True)
            JobKey.new().write(self.key)
        self._is_open = False

    def open(self, outside: str) -> str:
        """The coordinator listens there: the words for the user, once."""
        if self._is_open or not outside:
            return ""
        self._is_open = True
        place = outside.removeprefix("tcp://")
        commands = {name: self._command(place, name) for name in self._hosts.names[1:]}
        # Whoever waits for the file shall find all of it.
        half = self._lines.with_suffix(".half")
        half.write_text("".join(f"{line}\n" for line in commands.values()), encoding="utf-8")
        half.replace(self._lines)
        words = (
            f"This run waits for {', '.join(commands)}. There, with the same script and a copy of "
            f"{_short(self.key)} (whoever has it may join):"
        )
        return "\n".join([words, *(f"  {line}" for line in commands.values())])

    def _command(self, place: str, name: str) -> str:
        count = len(self._hosts.ranks(name))
        options = ("--key-file", _short(self.key), "--as", name)
        script = (_short(self._script), "--workers", str(count))
        return shlex.join(["manyhands", "join", place, *options, *script])

    def close(self) -> None:
        """Nobody can join any more."""
        if self._is_new:
            self.key.unlink(missing_ok=True)
        self._lines.unlink(missing_ok=True)


def _short(path: Path) -> str:
    """A path as one would type it here."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
