"""The subcommands and their options.

What they do is loaded only when one is called, so that `manyhands --help` answers at once.
"""

from pathlib import Path
from typing import Annotated

import typer

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


# An option has one name, one help text and one type wherever it means the same.
_VIRTUAL = "Virtual cluster"

Script = Annotated[Path, typer.Argument(help="A Python file with a job at its top level.")]
Arguments = Annotated[list[str] | None, typer.Argument(help="Arguments for the script, after --.")]
Strategy = Annotated[
    str | None,
    typer.Option(help="How to train, as in 'ssp(staleness=4)'; see `manyhands strategies`."),
]
Workers = Annotated[int | None, typer.Option(min=1, help="Number of workers.")]
Epochs = Annotated[float | None, typer.Option(help="Stop after this many passes over the data.")]
Samples = Annotated[int | None, typer.Option(min=1, help="Stop after this many samples.")]
Seconds = Annotated[float | None, typer.Option(help="Stop after this many seconds of training.")]
Target = Annotated[
    str | None,
    typer.Option(help="Stop when a validation metric reaches a value: 'accuracy >= 0.97'."),
]
Seed = Annotated[int | None, typer.Option(help="Seed of the run, in place of the job's.")]
Slow = Annotated[
    list[str] | None,
    typer.Option(
        help="Slow a worker on purpose: '2:4x' makes worker 2 compute 4 times as long; 'all:1.2x'."
    ),
]
JobName = Annotated[
    str | None,
    typer.Option(help="Name of the script's job; code below its main guard is not executed."),
]
Output = Annotated[
    Path | None, typer.Option(help="Folder for the run; default: a new one in runs.")
]
Network = Annotated[
    str | None,
    typer.Option(
        help="Put each worker behind a link of its own, on this machine: '100mbit', "
        "'100mbit, 20ms' (slow there and back too) or '100mbit, servers apart'."
    ),
]
Times = Annotated[
    str | None,
    typer.Option(
        help="Seconds that a worker computes on a batch: 'lognormal(0.1, cv=0.3)'.",
        rich_help_panel=_VIRTUAL,
    ),
]
Bandwidth = Annotated[
    str | None,
    typer.Option(
        help="Bandwidth of the links between hosts: '100mbit'; default: all are on one host.",
        rich_help_panel=_VIRTUAL,
    ),
]
Latency = Annotated[
    str | None,
    typer.Option(help="Latency of the links: '0.5ms'; default: 0.1ms.", rich_help_panel=_VIRTUAL),
]
Cores = Annotated[
    int | None, typer.Option(min=1, help="Cores of each host.", rich_help_panel=_VIRTUAL)
]

# Of several runs.
WorkerCounts = Annotated[
    str | None, typer.Option(help="Number of workers: 4; several to compare them: 1,2,4.")
]
FirstSeed = Annotated[
    int | None,
    typer.Option(help="Seed of the first repeat, in place of the job's; each further adds 1."),
]
Repeats = Annotated[int, typer.Option(min=1, help="Number of runs of each strategy.")]
Margin = Annotated[
    float, typer.Option(help="A difference in speed that does not matter: 0.05 is 5 %.")
]
Price = Annotated[
    float | None, typer.Option(min=0, help="Price of a worker for an hour, for the cost of runs.")
]
ComparisonOutput = Annotated[
    Path | None,
    typer.Option(
        help="Folder for the comparison; an interrupted one is continued. Default: a new one in "
        "comparisons."
    ),
]


@app.command(context_settings={"allow_interspersed_args": True})
def train(
    script: Script,
    arguments: Arguments = None,
    *,
    strategy: Strategy = None,
    workers: Workers = None,
    epochs: Epochs = None,
    samples: Samples = None,
    seconds: Seconds = None,
    target: Target = None,
    seed: Seed = None,
    slow: Slow = None,
    job: JobName = None,
    durability: Annotated[
        str | None,
        typer.Option(
            help="Failures that acknowledged updates of servers survive: none, process or power."
        ),
    ] = None,
    patience: Annotated[
        float | None,
        typer.Option(
            min=6,
            help="Seconds without a heartbeat until a worker is ejected, if the others can go on.",
        ),
    ] = None,
    output: Output = None,
    hosts: Annotated[
        str | None,
        typer.Option(help="Hosts and their workers, this one first: 'a:4, b:4'. See `join`."),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(help="Address at which other hosts reach this one: ADDRESS or ADDRESS:PORT."),
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option(help="Key of the run, if all hosts have it already; default: a new one."),
    ] = None,
    network: Network = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Do not show what workers print; it is in the logs.")
    ] = False,
    inside: Annotated[str | None, typer.Option(hidden=True)] = None,
    parent: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Train a script's job on real processes. Options given here win over the script's."""
    from manyhands.cli.preload import nursery_ahead, obey  # noqa: PLC0415 - see above

    if parent is not None:
        obey(parent)
    options = {
        "strategy": strategy,
        "workers": workers,
        "epochs": epochs,
        "samples": samples,
        "seconds": seconds,
        "target": target,
        "seed": seed,
        "slow": slow,
        "durability": durability,
        "patience": patience,
        "output": output,
        "quiet": quiet,
    }
    if network is not None:
        from manyhands.cli.network_run import train as spread  # noqa: PLC0415

        spread(script, arguments or [], options | {"job": job, "hosts": hosts}, network)
        return
    with nursery_ahead(script, strategy, workers, hosts):
        from manyhands.cli.train import train as run  # noqa: PLC0415

        where = {"hosts": hosts, "listen": listen, "key_file": key_file, "network": inside}
        run(script, arguments or [], options | where, job)


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
) -> None:
    """Join a run that another host has started; it prints the command for this one."""
    from manyhands.cli.preload import nursery_ahead, obey  # noqa: PLC0415 - see above

    if parent is not None:
        obey(parent)
    with nursery_ahead(script, None, workers, None):
        from manyhands.cli.join import join as run  # noqa: PLC0415

        run(address, script, key_file, name, workers, output)


@app.command(context_settings={"allow_interspersed_args": True})
def simulate(
    script: Script,
    arguments: Arguments = None,
    *,
    strategy: Strategy = None,
    workers: Workers = None,
    epochs: Epochs = None,
    samples: Samples = None,
    seconds: Seconds = None,
    target: Target = None,
    seed: Seed = None,
    slow: Slow = None,
    job: JobName = None,
    times: Times = None,
    bandwidth: Bandwidth = None,
    latency: Latency = None,
    cores: Cores = None,
    placing: Annotated[
        str | None,
        typer.Option(
            help="Hosts of the servers: 'apart', or 'colocated' with the workers.",
            rich_help_panel=_VIRTUAL,
        ),
    ] = None,
    service: Annotated[
        str | None,
        typer.Option(
            help="Time that a server takes for an update: '1ms'.", rich_help_panel=_VIRTUAL
        ),
    ] = None,
    handover: Annotated[
        str | None,
        typer.Option(
            help="Time of a message within one host, beside its copying: '50us'.",
            rich_help_panel=_VIRTUAL,
        ),
    ] = None,
    detection: Annotated[
        str | None,
        typer.Option(
            help="Time until the samples of a dead worker are given to another: '5s'.",
            rich_help_panel=_VIRTUAL,
        ),
    ] = None,
    faults: Annotated[
        str | None,
        typer.Option(
            help="What goes wrong: 'crash(worker=3, at=2.5, restart=1.0)'.",
            rich_help_panel=_VIRTUAL,
        ),
    ] = None,
    output: Output = None,
) -> None:
    """Train a script's job on a virtual clock, in one process, repeatable to the bit."""
    from manyhands.cli.simulate import simulate as run  # noqa: PLC0415 - see above

    options = {
        "strategy": strategy,
        "workers": workers,
        "epochs": epochs,
        "samples": samples,
        "seconds": seconds,
        "target": target,
        "seed": seed,
        "times": times,
        "slow": slow,
        "bandwidth": bandwidth,
        "latency": latency,
        "cores": cores,
        "placing": placing,
        "service": service,
        "handover": handover,
        "detection": detection,
        "faults": faults,
        "output": output,
    }
    run(script, arguments or [], options, job)


@app.command(context_settings={"allow_interspersed_args": True})
def compare(
    script: Script,
    arguments: Arguments = None,
    *,
    strategies: Annotated[
        str | None,
        typer.Option(
            help="How to train, as in 'allreduce, ssp(staleness=4)'; see `manyhands strategies`."
        ),
    ] = None,
    workers: WorkerCounts = None,
    repeats: Repeats = 3,
    epochs: Epochs = None,
    samples: Samples = None,
    seconds: Seconds = None,
    target: Target = None,
    seed: FirstSeed = None,
    slow: Slow = None,
    network: Network = None,
    virtual: Annotated[
        bool,
        typer.Option(
            "--virtual",
            help="Run on a virtual cluster of any size, in one process.",
            rich_help_panel=_VIRTUAL,
        ),
    ] = False,
    times: Times = None,
    bandwidth: Bandwidth = None,
    latency: Latency = None,
    cores: Cores = None,
    hosts: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of hosts that the workers are divided among, for all strategies alike.",
            rich_help_panel=_VIRTUAL,
        ),
    ] = None,
    margin: Margin = 0.05,
    price: Price = None,
    job: JobName = None,
    output: ComparisonOutput = None,
) -> None:
    """Run a script's job under several strategies, alike in everything else; say which is best."""
    from manyhands.cli.compare import compare as run  # noqa: PLC0415 - see above

    options = {
        "strategies": strategies,
        "workers": workers,
        "repeats": repeats,
        "epochs": epochs,
        "samples": samples,
        "seconds": seconds,
        "target": target,
        "seed": seed,
        "slow": slow,
        "network": network,
        "virtual": virtual,
        "times": times,
        "bandwidth": bandwidth,
        "latency": latency,
        "cores": cores,
        "hosts": hosts,
        "margin": margin,
        "price": price,
        "job": job,
        "output": output,
    }
    run(script, arguments or [], options)


@app.command(context_settings={"allow_interspersed_args": True})
def scaling(
    script: Script,
    arguments: Arguments = None,
    *,
    strategy: Strategy = "allreduce()",
    workers: WorkerCounts = "1,2,4",
    repeats: Repeats = 3,
    epochs: Epochs = None,
    samples: Samples = None,
    seconds: Seconds = None,
    target: Target = None,
    seed: FirstSeed = None,
    slow: Slow = None,
    network: Network = None,
    price: Price = None,
    job: JobName = None,
    output: ComparisonOutput = None,
) -> None:
    """Run a script's job on several numbers of workers; print speedup and efficiency."""
    from manyhands.cli.scaling import show_scaling as run  # noqa: PLC0415 - see above

    options = {
        "strategies": strategy,
        "workers": workers,
        "repeats": repeats,
        "epochs": epochs,
        "samples": samples,
        "seconds": seconds,
        "target": target,
        "seed": seed,
        "slow": slow,
        "network": network,
        "margin": 0.05,
        "price": price,
        "job": job,
        "output": output,
    }
    run(script, arguments or [], options)


@app.command(context_settings={"allow_interspersed_args": True})
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
def summary(run: Annotated[Path, typer.Argument(help="A run's folder.")]) -> None:
    """Print a run's summary: its outcome, and where its time went."""
    from manyhands.cli.summary import summary as show  # noqa: PLC0415 - see above

    show(run)


@app.command()
def report(
    paths: Annotated[
        list[Path],
        typer.Argument(help="A results.json, folders of comparisons, or folders of runs."),
    ],
    output: Annotated[
        Path | None,
        typer.Option(help="HTML file to write; default: report.html in the first folder."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="For folders of runs: time until a metric is reached: 'accuracy >= 0.98'."
        ),
    ] = None,
    price: Price = None,
) -> None:
    """Compare runs that were made: print a verdict and a table, draw charts on an HTML page."""
    from manyhands.cli.report import report as draw  # noqa: PLC0415 - see above

    draw(paths, output, target, price)


@app.command()
def tensorboard(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    output: Annotated[
        Path | None, typer.Option(help="Folder to write; default: tensorboard in the run's folder.")
    ] = None,
) -> None:
    """Export a run's loss, metrics and throughput as TensorBoard scalars."""
    from manyhands.cli.tensorboard import tensorboard as export  # noqa: PLC0415 - see above

    export(run, output)


@app.command()
def timeline(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    output: Annotated[
        Path | None,
        typer.Option(help="File to write, a picture if it ends in .svg; default: timeline.json."),
    ] = None,
) -> None:
    """Export a run's timeline as a Chrome trace for Perfetto, or draw it as an SVG."""
    from manyhands.cli.timeline import timeline as export  # noqa: PLC0415 - see above

    export(run, output)


def main() -> None:
    """The entry point of the command."""
    app()
