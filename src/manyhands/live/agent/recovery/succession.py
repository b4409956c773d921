"""A joined host's part when the first host is lost: the run continues without it, or the reason.

The servers of the first host are lost with it, so the run continues from its last checkpoint, if
the hosts that remain see the folder that holds it. They agree on a new first host
(`live/hosts/takeover.py`). It continues the run by `manyhands train --resume`, in the same folder
and with the same settings, and the others join it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from manyhands.failure import RunFailed
from manyhands.files.checkpoints import CHECKPOINTS, generations
from manyhands.live.hosts.host_list import Hosts
from manyhands.live.hosts.takeover import agree
from manyhands.script.job_changes import CHANGES
from manyhands.transport.interfaces import read_place
from manyhands.transport.security import JobKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from manyhands.live.agent.coordinator_link import FirstHostLost
    from manyhands.live.assignment import Assignment

_OPTIONS = (*CHANGES, "durability")
"""Settings of the job that `manyhands train` takes as options of the same name."""


class TakesOver(RunFailed):
    """This host is the new first host.

    Args:
        words: what has happened.
        arguments: of the `manyhands` command by which it continues the run.
    """

    def __init__(self, words: str, arguments: tuple[str, ...]) -> None:
        super().__init__(words)
        self.arguments = arguments


@dataclass(frozen=True)
class NextRun:
    """Where a host joins the run that continues."""

    host: str
    address: str
    port: int
    key: Path


def next_run(lost: FirstHostLost, say: Callable[[str], object]) -> NextRun:
    """Agree with the other hosts on the run that continues, and return where it is.

    Args:
        lost: the loss of the first host, as this one noticed it.
        say: shows a message.

    Raises:
        TakesOver: this host is to continue the run.
        RunFailed: the run cannot continue, or not with this host.
    """
    ours = lost.assignment
    why = _obstacle(ours)
    if why:
        raise RunFailed(f"{lost}; the run cannot continue by itself: {why}") from None
    say(f"{lost}; the hosts that remain look for a new first host")
    # The run's folder, which may hold the key, is cleared when the run continues.
    key = Path(ours.folder) / "key"
    JobKey.read(Path(ours.key or "")).write(key)
    decision = agree(Path(ours.storage), ours.attempt, Hosts(ours.hosts), ours.host, ours.address)
    if decision.first != ours.host:
        return NextRun(decision.first, *read_place(decision.place), key)
    hosts = Hosts(decision.hosts)
    raise TakesOver(
        f"this host takes its place, and continues the run from its last checkpoint with "
        f"{hosts.workers} workers ({hosts})",
        tuple(_command(ours, hosts, decision.place, key)),
    )


def _obstacle(ours: Assignment) -> str:
    """Why the run cannot continue without its first host; empty if it can."""
    folder = Path(ours.storage)
    if not ours.shares_folder:
        return f"this host does not see the folder {folder} of the first host"
    if not generations(folder / CHECKPOINTS):
        return f"there is no checkpoint in {folder} (train with --checkpoint)"
    if ours.origin.loop is not None or ours.origin.package or ours.overrides.timed_batch:
        return (
            "it was not started from a script without a training loop of its own; continue it "
            f"with --resume {folder}"
        )
    return ""


def _command(ours: Assignment, hosts: Hosts, place: str, key: Path) -> Iterator[str]:
    """The arguments of the command that continues the run."""
    origin = ours.origin
    yield from ("train", origin.script, "--job", origin.job, "--strategy", ours.strategy)
    yield from ("--hosts", str(hosts), "--listen", place, "--key-file", str(key))
    yield from ("--resume", ours.storage, "--output", ours.storage)
    for name in _OPTIONS:
        value = getattr(ours.overrides, name)
        if value is not None:
            yield from (f"--{name.replace('_', '-')}", str(value))
    for pace in ours.slow:
        yield from ("--slow", str(pace))
    for name, value in origin.values.items():
        yield from ("--set", f"{name}={value}")
    if ours.overrides.double:
        yield "--double"
    if ours.overrides.perturbed:
        yield "--perturbed"
    if ours.patience is not None:
        yield from ("--patience", str(ours.patience))
    servers = [name for name in ours.server_hosts if name in hosts.names]
    if servers:
        yield from ("--servers-on", ", ".join(dict.fromkeys(servers)))
    yield from ("--", *origin.argv[1:])
