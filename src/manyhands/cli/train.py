"""`manyhands train`: a script under the command line's settings."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from manyhands.failure import RunFailed
from manyhands.job import Job
from manyhands.live.hosts import Hosts
from manyhands.live.invitation import choose_address
from manyhands.live.script import execute
from manyhands.strategies import strategy
from manyhands.verbs import train as train_verb
from manyhands.verbs.command import Command, under

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType


def train(script: Path, arguments: list[str], command: Command) -> None:
    """Execute the script as Python would, with the command's settings in force.

    A script that only defines a job, and trains nothing, has its job trained.
    """
    if not script.is_file():
        _leave(f"there is no file {script}", 2)
    _check_strategy(command)
    _check_hosts(command)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    with under(command):
        try:
            module = execute(script.resolve(), "__main__")
            if not command.runs:
                _train_only_job(module, script)
        except RunFailed as failure:
            _leave(f"manyhands: {failure}", 1)
        except KeyboardInterrupt:
            _leave("manyhands: interrupted; all processes are ended", 130)
    for run in command.runs:
        if not run.was_summarised:
            typer.echo(run.summary())


def _check_strategy(command: Command) -> None:
    """Refuse what cannot be before the script is executed, in words and not in a traceback."""
    if command.strategy is None:
        return
    try:
        chosen = strategy(command.strategy)
        if command.workers is not None:
            chosen.check(command.workers)
    except ValueError as error:
        _leave(f"manyhands: {error}", 2)


def _check_hosts(command: Command) -> None:
    """The same for hosts and for the address at which they find this one."""
    try:
        if command.hosts is not None:
            Hosts.read(command.hosts)
            choose_address(command.listen)
        elif command.listen is not None:
            raise ValueError("--listen is where other hosts find this one: name them with --hosts")  # noqa: TRY301
    except ValueError as error:
        _leave(f"manyhands: {error}", 2)


def _train_only_job(module: ModuleType, script: Path) -> None:
    jobs = {name: value for name, value in vars(module).items() if isinstance(value, Job)}
    if len(jobs) != 1:
        found = f"{len(jobs)} jobs ({', '.join(jobs)})" if jobs else "no job"
        _leave(
            f"{script} trains nothing by itself and has {found} at its top level; "
            "it needs exactly one, or a call of mh.train below the main guard",
            2,
        )
    (job,) = jobs.values()
    train_verb(job)


def _leave(words: str, code: int) -> None:
    typer.echo(words, err=True)
    raise typer.Exit(code)
