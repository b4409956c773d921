"""The subcommands and their options.

What they do is loaded only when one is called, so that `manyhands --help` answers at once.
"""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from manyhands.cli import launching, planning, publishing, searching, slurm
from manyhands.cli.exit import check_folder, show
from manyhands.cli.options import (
    CHANGES,
    VIRTUAL,
    Arguments,
    Bandwidth,
    ClusterText,
    Coding,
    ComparisonOutput,
    Cores,
    Durability,
    Faults,
    FirstSeed,
    HostList,
    JobName,
    KeyFile,
    Latency,
    Listen,
    Margin,
    Network,
    Output,
    Patience,
    Placing,
    Price,
    Repeats,
    Resume,
    Script,
    ServersOn,
    Slow,
    Strategy,
    Sweep,
    TimeOnly,
    Times,
    Values,
    WorkerCounts,
    Workers,
    changes,
    takes,
)
from manyhands.cli.script_command import ScriptCommand
from manyhands.files.standard_streams import outlast_unwritable
from manyhands.live.processes.parent_death import signals_raise

app = typer.Typer(
    name="manyhands",
    help="Train one PyTorch model under any parallel strategy, by changing one word.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version  # noqa: PLC0415 - see above

        typer.echo(f"manyhands {version('manyhands')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version."),
    ] = False,
) -> None:
    """Train one PyTorch model under any parallel strategy, by changing one word."""


OF_ONE_RUN = {
    "strategy": Strategy,
    "workers": Workers,
    **CHANGES,
    "slow": Slow,
    "faults": Faults,
    "values": Values,
    "resume": Resume,
    "output": Output,
    "cluster": ClusterText,
}
"""Options of `train` and of `simulate`."""


@app.command(cls=ScriptCommand)
@takes(
    **OF_ONE_RUN,
    durability=Durability,
    patience=Patience,
    servers_on=ServersOn,
    quiet=Annotated[
        bool | None,
        typer.Option("--quiet", help="Do not show what workers print; it is in the logs."),
    ],
    timed_batch=Annotated[int | None, typer.Option(hidden=True)],
    timed_links=Annotated[bool | None, typer.Option("--timed-links", hidden=True)],
    double=Annotated[bool | None, typer.Option("--double", hidden=True)],
    perturbed=Annotated[bool | None, typer.Option("--perturbed", hidden=True)],
)
def train(
    script: Script,
    arguments: Arguments = None,
    *,
    job: JobName = None,
    hosts: HostList = None,
    listen: Listen = None,
    key_file: KeyFile = None,
    network: Network = None,
    inside: Annotated[str | None, typer.Option(hidden=True)] = None,
    link: Annotated[float | None, typer.Option(hidden=True)] = None,
    parent: Annotated[int | None, typer.Option(hidden=True)] = None,
    **options: Any,
) -> None:
    """Train a script's job on real processes. Options given here win over the script's."""
    from manyhands.cli.preload import end_with_parent, fork_server_ahead  # noqa: PLC0415 - see above

    if parent is not None:
        end_with_parent(parent)
    options |= {"quiet": bool(options["quiet"])}
    if network is not None or (options["cluster"] is not None and inside is None):
        from manyhands.cli.network_run import train as spread  # noqa: PLC0415

        spread(script, arguments or [], options | {"job": job, "hosts": hosts}, network)
        return
    where = {"hosts": hosts, "listen": listen, "key_file": key_file, "network": inside}
    if hosts in launching.SYSTEMS:
        launching.train_on(hosts, script, arguments or [], options | where, job)
        return
    slurm.enter_allocation(hosts)
    with fork_server_ahead(script, options["strategy"], options["workers"], hosts):
        from manyhands.cli.train import train as run  # noqa: PLC0415

        run(script, arguments or [], options | where | {"link": link}, job)


@app.command()
def join(
    address: Annotated[
        str, typer.Argument(help="Address at which the first host of the run listens.")
    ],
    script: Annotated[Path, typer.Argument(help="The same script as on the first host.")],
    *,
    key_file: Annotated[Path, typer.Option(help="Key of the run: a copy of the first host's.")],
    name: Annotated[
        str | None, typer.Option("--as", help="Name of this host in the run; default: its own.")
    ] = None,
    workers: Workers = None,
    output: Annotated[Path | None, typer.Option(help="Folder for the logs of this host.")] = None,
    parent: Annotated[int | None, typer.Option(hidden=True)] = None,
    answer_within: Annotated[float, typer.Option(hidden=True)] = 120.0,
) -> None:
    """Join a run that another host has started; it prints the command for this one."""
    from manyhands.cli.preload import end_with_parent, fork_server_ahead  # noqa: PLC0415 - see above

    if parent is not None:
        end_with_parent(parent)
    with fork_server_ahead(script, None, workers, None):
        from manyhands.cli.join import join as run  # noqa: PLC0415

        run(address, script, key_file, name, workers, output, answer_within)


@app.command(cls=ScriptCommand)
@takes(
    **OF_ONE_RUN,
    times=Times,
    bandwidth=Bandwidth,
    latency=Latency,
    cores=Cores,
    placing=Placing,
    service=Annotated[
        str | None,
        typer.Option(
            help="Time that a server takes for an update: '1ms'.", rich_help_panel=VIRTUAL
        ),
    ],
    handover=Annotated[
        str | None,
        typer.Option(
            help="Time of a message within one host, beside its copying: '50us'.",
            rich_help_panel=VIRTUAL,
        ),
    ],
    coding=Coding,
    detection=Annotated[
        str | None,
        typer.Option(
            help="Time until the samples of a dead worker are given to another: '5s'.",
            rich_help_panel=VIRTUAL,
        ),
    ],
    time_only=TimeOnly,
)
def simulate(
    script: Script, arguments: Arguments = None, *, job: JobName = None, **options: Any
) -> None:
    """Train a script's job on a virtual clock, in one process, repeatable to the bit."""
    from manyhands.cli.simulate import simulate as run  # noqa: PLC0415 - see above

    run(script, arguments or [], options, job)


OF_COMPARISONS = {
    "workers": WorkerCounts,
    **changes("epochs", "samples", "seconds", "target"),
    "seed": FirstSeed,
    **changes("lr", "evaluate_every", "measures"),
    "slow": Slow,
    "network": Network,
    "price": Price,
    "job": JobName,
    "output": ComparisonOutput,
}
"""Options of `compare` and of `scaling`."""


@app.command(cls=ScriptCommand)
@takes(
    strategies=Annotated[
        str | None,
        typer.Option(
            help="How to train, as in 'allreduce, ssp(staleness=4)'; see `manyhands strategies`."
        ),
    ],
    sweep=Sweep,
    **OF_COMPARISONS,
    faults=Faults,
    cluster=ClusterText,
    times=Times,
    bandwidth=Bandwidth,
    latency=Latency,
    cores=Cores,
    hosts=Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of hosts that the workers are divided among, for all strategies alike.",
            rich_help_panel=VIRTUAL,
        ),
    ],
    coding=Coding,
    time_only=TimeOnly,
    processes=Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of virtual runs that are made at the same time; default: one per core.",
            rich_help_panel=VIRTUAL,
        ),
    ],
)
def compare(
    script: Script,
    arguments: Arguments = None,
    *,
    repeats: Repeats = 3,
    margin: Margin = 0.05,
    virtual: Annotated[
        bool,
        typer.Option(
            "--virtual",
            help="Run on a virtual cluster of any size.",
            rich_help_panel=VIRTUAL,
        ),
    ] = False,
    **options: Any,
) -> None:
    """Run a script's job under several strategies, alike in everything else; say which is best."""
    from manyhands.cli.compare import compare as run  # noqa: PLC0415 - see above

    own = {"repeats": repeats, "margin": margin, "virtual": virtual}
    run(script, arguments or [], options | own)


@app.command(cls=ScriptCommand)
@takes(**{name: one for name, one in OF_COMPARISONS.items() if name != "workers"})
def scaling(
    script: Script,
    arguments: Arguments = None,
    *,
    strategy: Strategy = "allreduce()",
    workers: WorkerCounts = "1,2,4",
    repeats: Repeats = 3,
    **options: Any,
) -> None:
    """Run a script's job on several numbers of workers; print speedup and efficiency."""
    from manyhands.cli.scaling import show_scaling as run  # noqa: PLC0415 - see above

    own = {"strategies": strategy, "workers": workers, "repeats": repeats, "margin": 0.05}
    run(script, arguments or [], options | own)


@app.command(cls=ScriptCommand)
def forecast(
    script: Script,
    arguments: Arguments = None,
    *,
    strategy: Annotated[
        str,
        typer.Option(help="How to train, as in 'ssp(staleness=4)'; see `manyhands strategies`."),
    ],
    workers: Annotated[int, typer.Option(min=1, help="Number of workers.")],
    worker: Annotated[
        int | None, typer.Option(min=0, help="Only this worker; default: one of each kind.")
    ] = None,
    job: JobName = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print what a worker will send and how much memory it will need; no worker is started."""
    from manyhands.cli.forecast import forecast as run  # noqa: PLC0415 - see above

    options = {"strategy": strategy, "workers": workers, "worker": worker, "job": job, "json": json}
    run(script, arguments or [], options)


@app.command()
def strategies(
    name: Annotated[str | None, typer.Argument(help="A strategy to explain.")] = None,
) -> None:
    """List the strategies, or explain one."""
    from manyhands.cli.strategies import strategies as run  # noqa: PLC0415 - see above

    run(name)


@app.command()
def schedule(
    name: Annotated[
        str,
        typer.Argument(help="gpipe, one_f_one_b, interleaved, zero_bubble or pipedream."),
    ],
    *,
    stages: Annotated[int, typer.Option(min=1, help="Number of stages of the model.")] = 4,
    microbatches: Annotated[
        int, typer.Option(min=1, help="Number of microbatches of a batch.")
    ] = 8,
    workers: Workers = None,
    output: Annotated[Path | None, typer.Option(help="SVG file to draw it in.")] = None,
) -> None:
    """Draw a pipeline schedule, and print its bubble and how many activations it holds."""
    from manyhands.cli.schedule import schedule as draw  # noqa: PLC0415 - see above

    draw(name, stages, microbatches, workers, output)


for planned in (
    *(planning.codecs, planning.check, planning.costs, planning.doctor),
    *(planning.calibrate, planning.plan, searching.search),
    *(launching.kubernetes, slurm.slurm),
):
    app.command(cls=ScriptCommand)(planned)
for published in (
    *(publishing.export, publishing.reproduce, publishing.summary, publishing.report),
    *(publishing.tensorboard, publishing.timeline, publishing.watch),
):
    app.command()(published)


def main() -> None:
    """The entry point of the command."""
    outlast_unwritable()
    check_folder()
    try:
        with signals_raise():
            app()
    except Exception as error:  # noqa: BLE001 - of the user's script, or a defect
        sys.exit(show(error))
