"""The options of the command line, for the calls that a script makes."""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from manyhands.free import read_values, settled
from manyhands.script.job_changes import JobChanges

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from manyhands.faults import Faults
    from manyhands.pacing import Pace
    from manyhands.reports import Run
    from manyhands.strategies import Strategy

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Command(JobChanges):
    """The options of `manyhands train`; they win over the script's."""

    values: Mapping[str, str] | None = None
    """Values of the job's free parameters, as texts."""
    strategy: Strategy | str | None = None
    """A text, if the script may register a strategy of this name."""
    workers: int | None = None
    resume: str | None = None
    timed_batch: int | None = None
    timed_links: bool | None = None
    double: bool | None = None
    perturbed: bool | None = None
    durability: str | None = None
    slow: tuple[Pace, ...] | None = None
    faults: Faults | None = None
    output: Path | None = None
    hosts: str | None = None
    listen: str | None = None
    servers_on: str | None = None
    key_file: Path | None = None
    patience: float | None = None
    quiet: bool = False
    """Do not show in the terminal what workers print."""
    network: str | None = None
    """The network between the hosts in words, if it was made for the run."""
    link: float | None = None
    """Bytes per second of each host's link, if the network was made for the run."""
    cluster: str | None = None
    """The declared cluster whose hosts these are, as text, if the network was made for one."""
    runs: list[Run] = field(default_factory=list)
    """The runs that the script has made so far."""


_current: ContextVar[Command | None] = ContextVar("manyhands command", default=None)


def current() -> Command:
    """The command under which the script runs; an empty one for `python script.py`."""
    return _current.get() or Command()


@contextlib.contextmanager
def under(command: Command) -> Iterator[Command]:
    """Apply the options of `command` to the calls of `train` in the block."""
    token = _current.set(command)
    try:
        yield command
    finally:
        _current.reset(token)


def chosen_values(
    source: object, script: Mapping[str, Any] | None, command: Mapping[str, str] | None
) -> dict[str, Any]:
    """The values of a job's free parameters; those of the command line win.

    Args:
        source: the job, or the function that makes it.
        script: the values that the script gives.
        command: texts of the command line, by name.

    Raises:
        ValueError: one of them is none that its parameter may have.
    """
    given = dict(script or {})
    if not callable(source):
        return given | dict(command or {})
    given |= read_values(command or {}, source)
    return settled(source, given)


def choose(command: T | None, script: T | None, default: T) -> tuple[T, str]:
    """The value of a setting, and its source: the command line, the script or the default."""
    if command is not None:
        return command, "command line"
    if script is not None:
        return script, "script"
    return default, "default"
