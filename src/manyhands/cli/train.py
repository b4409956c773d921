"""`manyhands train`: executes a script with the settings of the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import typer

from manyhands.cli.exit import leave
from manyhands.cli.script_job import enter, explained, jobs_of, load_script, paced, read_settings
from manyhands.failure import Refused, RunFailed
from manyhands.faults import Faults
from manyhands.live.hosts.invitation import check_key, choose_address
from manyhands.live.hosts.slurm import read_hosts
from manyhands.notation import NotationError, parse
from manyhands.script.loading import at, execute
from manyhands.strategies import is_known, strategy
from manyhands.verbs.command import Command, under
from manyhands.verbs.train import train as train_verb
from manyhands.verbs.train import train_from

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import ModuleType

    from manyhands.job import Job
    from manyhands.strategies import Strategy


def train(
    script: Path, arguments: list[str], options: Mapping[str, Any], job: str | None = None
) -> None:
    """Execute the script as Python would, with the settings of the command line.

    If the script defines a job and does not train it, that job is trained. If a job is named, the
    script is executed up to its main guard, and only that job is trained.
    """
    if not script.is_file():
        leave(f"manyhands: there is no file {script}")
    command = Command(**_read(options))
    _check(command)
    _check_hosts(command)
    enter(script, arguments)
    with under(command):
        try:
            if job is not None:
                name, module = load_script(script, job)
                train_from(vars(module), cast("Job", at(module, name)))
            else:
                with explained(script):
                    module = execute(script.resolve(), "__main__")
                if not command.runs:
                    _train_only_job(module, script)
        except Refused as refusal:
            leave(f"manyhands: {refusal}")
        except RunFailed as failure:
            leave(f"manyhands: {failure}", 1)
        except KeyboardInterrupt:
            leave("manyhands: interrupted; all processes are ended", 130)
    for run in command.runs:
        if not run.was_summarised:
            typer.echo(run.summary())
    if any(run.status == "failed" for run in command.runs):
        # A run that diverged with stop_on_nan=False.
        raise typer.Exit(1)


def _read(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with the texts of the strategy, of `--slow` and of `--faults` parsed.

    A strategy or a codec of an unknown name remains a text: the script may register it.
    """
    text = options["strategy"]
    try:
        faults = options.get("faults")
        read = None if faults is None else Faults.read(faults)
        given = {**paced(options), "values": read_settings(options.get("values")) or None}
        return {**given, "faults": read, "strategy": text if text is None else _known(text)}
    except ValueError as error:
        leave(f"manyhands: {error}")


def _known(text: str) -> Strategy | str:
    """The strategy of a text; the text itself, if the script may define a name in it."""
    parse(text)
    if not is_known(text):
        return text
    try:
        return strategy(text)
    except NotationError as error:
        if error.undefined:
            return text
        raise


def _check(command: Command) -> None:
    """Refuse impossible options before the script is executed, with a message."""
    try:
        if command.workers is None:
            return
        if command.strategy is not None and not isinstance(command.strategy, str):
            command.strategy.check(command.workers)
        for pace in command.slow or ():
            pace.check(command.workers)
    except ValueError as error:
        leave(f"manyhands: {error}")


def _check_hosts(command: Command) -> None:
    """Check the hosts, the address and the key before the script is executed."""
    try:
        if command.hosts is not None:
            hosts = read_hosts(command.hosts)
            hosts.check_count(command.workers)
            choose_address(command.listen, hosts)
            if command.key_file is not None:
                check_key(command.key_file)
            if command.strategy is not None and not isinstance(command.strategy, str):
                command.strategy.check_places(hosts.names, ())
        elif command.listen is not None or command.key_file is not None:
            leave("manyhands: --listen and --key-file require other hosts: name them with --hosts")
    except ValueError as error:
        leave(f"manyhands: {error}")


def _train_only_job(module: ModuleType, script: Path) -> None:
    jobs = jobs_of(module)
    if len(jobs) != 1:
        found = f"{len(jobs)} jobs ({', '.join(jobs)})" if jobs else "no job"
        leave(
            f"{script} does not call mh.train and has {found} at its top level; "
            "it needs exactly one, --job NAME of a job or of a function without arguments that "
            "returns one, or a call of mh.train below the main guard"
        )
    (job,) = jobs.values()
    train_verb(job)
