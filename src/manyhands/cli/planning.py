"""The subcommands that measure before a run is made, and their options.

What they do is loaded only when one is called, as in `manyhands.cli.app`.
"""

from pathlib import Path
from typing import Annotated

import typer

from manyhands.cli.options import (
    Arguments,
    HostList,
    JobName,
    KeyFile,
    Listen,
    Output,
    Script,
    Strategy,
    Workers,
)


def codecs(
    script: Script,
    arguments: Arguments = None,
    *,
    codec: Annotated[
        list[str] | None,
        typer.Option(help="A codec, as in 'topk(0.05)'; can be given several times. Default: all."),
    ] = None,
    network: Annotated[
        list[str] | None,
        typer.Option(
            help="A network, as in '100mbit' or '100mbit, 20ms'; can be given several times. "
            "Default: from 10mbit to 10gbit."
        ),
    ] = None,
    workers: Workers = None,
    job: JobName = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure what codecs save and take for a job, and print on which networks they pay."""
    from manyhands.cli.codecs import codecs as run  # noqa: PLC0415 - see above

    options = {"codec": codec, "network": network, "workers": workers, "job": job, "json": json}
    run(script, arguments or [], options)


def check(
    script: Script,
    arguments: Arguments = None,
    *,
    strategy: Strategy = None,
    workers: Workers = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps of all workers together.")] = 3,
    job: JobName = None,
) -> None:
    """Say whether a job trains the same on several workers as on one, and if not, why."""
    from manyhands.cli.check import check as run  # noqa: PLC0415 - see above

    options = {"strategy": strategy, "workers": workers, "steps": steps, "job": job}
    run(script, arguments or [], options)


def doctor(
    script: Annotated[
        Path | None,
        typer.Argument(help="A Python file with a job at its top level; default: none."),
    ] = None,
    arguments: Arguments = None,
    *,
    strategy: Strategy = None,
    workers: Workers = None,
    hosts: HostList = None,
    listen: Listen = None,
    key_file: KeyFile = None,
    output: Output = None,
    job: JobName = None,
    all_: Annotated[bool, typer.Option("--all", help="Show also what is right.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what is wrong on this machine before a run (exit code 1), and what to do."""
    from manyhands.cli.doctor import doctor as run  # noqa: PLC0415 - see above

    options = {
        "strategy": strategy,
        "workers": workers,
        "hosts": hosts,
        "listen": listen,
        "key_file": key_file,
        "output": output,
        "job": job,
        "all": all_,
        "json": json,
    }
    run(script, arguments or [], options)
