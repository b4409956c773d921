"""A run that is spread over a network on this machine: every worker on a host of its own.

The hosts are network namespaces. The first of them begins the run, the others join it by the line
that it offers, as hosts would that are far apart.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from manyhands.failure import RunFailed
from manyhands.lab.launcher import end
from manyhands.lab.network import Network, Place, network
from manyhands.live.invitation import LINES
from manyhands.live.lifeline import signals_raise

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from typing import BinaryIO

_POLL = 0.1
_PARTING = 5.0
"""Seconds in which those who joined must have left when the run is over."""


def train_spread(arguments: Sequence[str], shape: Network, workers: int, output: Path) -> int:
    """Run `manyhands train` with these arguments, each worker behind a link; its exit code.

    Args:
        arguments: the script and its options, but for --workers, --hosts and --output.
        shape: the network.
        workers: how many.
        output: the run's folder.

    Raises:
        NotPermitted: this machine does not allow it.
        RunFailed: a host could not join.
    """
    names = [f"w{number}" for number in range(workers)]
    counts = dict.fromkeys(names, 1)
    if shape.apart:
        counts = {"servers": 0} | counts
    hosts = ", ".join(f"{name}:{count}" for name, count in counts.items())
    with signals_raise(), network(len(counts), shape.rate) as places:
        here, *others = places
        options = ("--hosts", hosts, "--listen", here.address, "--output", str(output))
        lab = ("--inside", shape.words, "--parent", str(os.getpid()))
        with _started(here, "train", *options, *lab, *arguments) as first:
            return _follow(first, list(zip(list(counts)[1:], others, strict=True)), output)


def _follow(first: subprocess.Popen[bytes], others: list[tuple[str, Place]], output: Path) -> int:
    """Let the others join each run that the first one begins; its exit code."""
    with contextlib.ExitStack() as stack:
        joined: set[Path] = set()
        joiners: list[_Joiner] = []
        try:
            while first.poll() is None:
                for lines in sorted(output.parent.glob(f"{output.name}*/{LINES}")):
                    if lines not in joined:
                        joined.add(lines)
                        joiners += _join(lines, others, stack)
                _check(joiners)
                time.sleep(_POLL)
        except BaseException:
            # It tells the others, which then know why they end.
            end(first)
            raise
        finally:
            for joiner in joiners:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    joiner.process.wait(_PARTING)
    return first.returncode


@dataclass(frozen=True)
class _Joiner:
    """A host that joins, or is about to."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path


def _join(
    lines: Path, others: list[tuple[str, Place]], stack: contextlib.ExitStack
) -> Iterator[_Joiner]:
    folder = lines.parent
    commands = [shlex.split(line) for line in lines.read_text(encoding="utf-8").splitlines()]
    for (name, place), (_, _, *words) in zip(others, commands, strict=True):
        part = folder / "hosts" / name
        log = folder / "logs" / f"join-{name}.txt"
        stream = stack.enter_context(log.open("wb"))
        options = ("--output", str(part), "--parent", str(os.getpid()))
        process = stack.enter_context(_started(place, "join", *words, *options, stream=stream))
        yield _Joiner(name, process, log)


def _check(joiners: list[_Joiner]) -> None:
    """See whether one was not let in: the first host would wait for it for ever."""
    for joiner in joiners:
        if joiner.process.poll():
            words = joiner.log.read_text(encoding="utf-8", errors="replace").strip()
            if "joined" not in words:
                raise RunFailed(f"host {joiner.name} could not join: {words}")


@contextlib.contextmanager
def _started(
    place: Place, verb: str, *words: str, stream: BinaryIO | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A command of ours at a place; ended with us, politely first."""
    process = subprocess.Popen(  # noqa: S603 - our own command
        place.inside(sys.executable, "-m", "manyhands", verb, *words),
        stdin=subprocess.DEVNULL,
        stdout=stream,
        stderr=stream,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        end(process)
