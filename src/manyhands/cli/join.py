"""`manyhands join`: joins a run that another host started."""

from __future__ import annotations

import os
import socket
import sys
from typing import TYPE_CHECKING

import typer

from manyhands.cli.exit import leave
from manyhands.failure import RunFailed
from manyhands.live.agent.join import Application
from manyhands.live.agent.join import join as take_part
from manyhands.live.agent.recovery.succession import TakesOver
from manyhands.live.hosts.host_list import check_name
from manyhands.live.hosts.invitation import check_key
from manyhands.transport.interfaces import read_place

if TYPE_CHECKING:
    from pathlib import Path


def join(
    place: str,
    script: Path,
    key: Path,
    name: str | None,
    workers: int | None,
    output: Path | None,
    answer_within: float,
) -> None:
    """Join the run at `place` and return when it is over."""
    try:
        address, port = read_place(place)
        _check(script, key)
        host = name or socket.gethostname()
        check_name(host)
        application = Application(
            *(address, port, key, host, script, workers, output, answer_within), continues=True
        )
    except ValueError as error:
        leave(f"manyhands: {error}")
    try:
        take_part(application)
    except TakesOver as order:
        typer.echo(f"manyhands: {order}", err=True)
        # In place of this process, so that who started it still has it.
        os.execv(sys.executable, [sys.executable, "-m", "manyhands", *order.arguments])  # noqa: S606
    except RunFailed as failure:
        leave(f"manyhands: {failure}", 1)
    except KeyboardInterrupt:
        leave(f"manyhands: interrupted; the workers of {host} are ended", 130)
    typer.echo(f"manyhands: the run is over; the workers of {host} have finished", err=True)


def _check(script: Path, key: Path) -> None:
    if not script.is_file():
        raise ValueError(f"there is no file {script}")
    check_key(key)
