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


Seconds = Annotated[float | None, typer.Option(help="Seconds of training.")]
Target = Annotated[
    str | None,
    typer.Option(help="Stop when it is reached: 'accuracy >= 0.97'; else at the limit."),
]
Slow = Annotated[
    list[str] | None, typer.Option(help="Worker 2 computes 4 times as long: '2:4x'; 'all:1.2x'.")
]
Network = Annotated[
    str | None,
    typer.Option(
        help="Each worker behind a link of its own, on this machine: '100mbit', "
        "'100mbit, 20ms' (slow there and back too) or '100mbit, servers apart'."
    ),
]
Repeats = Annotated[int, typer.Option(min=1, help="How often each is run.")]
Margin = Annotated[
    float, typer.Option(help="A difference in speed that does not matter: 0.05 is 5 %.")
]
Price = Annotated[float | None, typer.Option(help="Of a worker for an hour.")]
Output = Annotated[
    Path | None, typer.Option(help="A folder; an interrupted comparison goes on in its own.")
]


@app.command(context_settings={"allow_interspersed_args": True})
def train(
    script: Annotated[Path, typer.Argument(help="A Python file with a job at its top level.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Arguments for the script, after --.")
    ] = None,
    *,
    strategy: Annotated[
        str | None, typer.Option(help="How, for example 'allreduce()'; see `strategies`.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="How many workers.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the data.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Samples to train on.")] = None,
    seconds: Seconds = None,
    target: Target = None,
    seed: Annotated[int | None, typer.Option(help="The run's seed.")] = None,
    slow: Slow = None,
    job: Annotated[
        str | None,
        typer.Option(help="Train this job, and leave out what stands below the main guard."),
    ] = None,
    durability: Annotated[
        str | None,
        typer.Option(
            help="What parameter servers' acknowledged updates survive: none, process or power."
        ),
    ] = None,
    patience: Annotated[
        float | None,
        typer.Option(
            min=6, help="Seconds until a worker that is silent is ejected, if the others can go on."
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="A folder for the run.")] = None,
    hosts: Annotated[
        str | None,
        typer.Option(help="Hosts and their workers, this one first: 'a:4, b:4'. See `join`."),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(help="Where other hosts find this one: ADDRESS or ADDRESS:PORT."),
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option(help="A key that all hosts have already; by default a new one is made."),
    ] = None,
    network: Network = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Do not show what workers print; logs have it.")
    ] = False,
    inside: Annotated[str | None, typer.Option(hidden=True)] = None,
    parent: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Train a script's job on real processes. What is given here wins over the script."""
    from manyhands.cli.preload import end_with_parent, fork_server_ahead  # noqa: PLC0415 - see above

    if parent is not None:
        end_with_parent(parent)
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
    with fork_server_ahead(script, strategy, workers, hosts):
        from manyhands.cli.train import train as run  # noqa: PLC0415

        where = {"hosts": hosts, "listen": listen, "key_file": key_file, "network": inside}
        run(script, arguments or [], options | where, job)


@app.command()
def join(
    address: Annotated[str, typer.Argument(help="Where the run's first host listens.")],
    script: Annotated[Path, typer.Argument(help="The same file as there.")],
    *,
    key_file: Annotated[Path, typer.Option(help="A copy of the run's key.")],
    name: Annotated[
        str | None, typer.Option("--as", help="This host's name in the run; default: its own.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="How many workers.")] = None,
    output: Annotated[Path | None, typer.Option(help="A folder for this host's logs.")] = None,
    parent: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Join a run that another host has begun; it prints the line to type here."""
    from manyhands.cli.preload import end_with_parent, fork_server_ahead  # noqa: PLC0415 - see above

    if parent is not None:
        end_with_parent(parent)
    with fork_server_ahead(script, None, workers, None):
        from manyhands.cli.join import join as run  # noqa: PLC0415

        run(address, script, key_file, name, workers, output)


@app.command(context_settings={"allow_interspersed_args": True})
def simulate(
    script: Annotated[Path, typer.Argument(help="A Python file with a job at its top level.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Arguments for the script, after --.")
    ] = None,
    *,
    strategy: Annotated[
        str | None, typer.Option(help="How, for example 'asynchronous(servers=2)'.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="How many workers.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the data.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Samples to train on.")] = None,
    seconds: Seconds = None,
    target: Target = None,
    seed: Annotated[int | None, typer.Option(help="The run's seed.")] = None,
    times: Annotated[
        str | None, typer.Option(help="Seconds per batch: 'lognormal(0.1, cv=0.3)'.")
    ] = None,
    slow: Slow = None,
    bandwidth: Annotated[
        str | None, typer.Option(help="Of links, '100mbit'; gives each process its own host.")
    ] = None,
    latency: Annotated[str | None, typer.Option(help="Of links: '0.5ms'.")] = None,
    cores: Annotated[int | None, typer.Option(min=1, help="Cores of each host.")] = None,
    placing: Annotated[
        str | None, typer.Option(help="Of servers: 'apart', or 'colocated' with workers.")
    ] = None,
    service: Annotated[str | None, typer.Option(help="A server's time per update.")] = None,
    handover: Annotated[
        str | None, typer.Option(help="Time of a message within one host: '50us'.")
    ] = None,
    detection: Annotated[
        str | None, typer.Option(help="Time until a dead worker is missed: '5s'.")
    ] = None,
    faults: Annotated[
        str | None, typer.Option(help="What goes wrong: 'crash(worker=3, at=2.5, restart=1.0)'.")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="A folder for the run.")] = None,
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
    run(script, arguments or [], options)


@app.command(context_settings={"allow_interspersed_args": True})
def compare(
    script: Annotated[Path, typer.Argument(help="A Python file with a job at its top level.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Arguments for the script, after --.")
    ] = None,
    *,
    strategies: Annotated[
        str | None, typer.Option(help="Which: 'allreduce, ssp(staleness=4), asynchronous'.")
    ] = None,
    workers: Annotated[str | None, typer.Option(help="How many: 4, or 1,2,4.")] = None,
    repeats: Repeats = 3,
    epochs: Annotated[float | None, typer.Option(help="Passes over the data.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Samples to train on.")] = None,
    seconds: Seconds = None,
    target: Target = None,
    seed: Annotated[int | None, typer.Option(help="Of the first repeat; then one more.")] = None,
    slow: Slow = None,
    network: Network = None,
    virtual: Annotated[
        bool, typer.Option("--virtual", help="On a virtual cluster, of any size.")
    ] = False,
    times: Annotated[
        str | None, typer.Option(help="There: seconds per batch, 'lognormal(0.1, cv=0.3)'.")
    ] = None,
    bandwidth: Annotated[str | None, typer.Option(help="There: of links, '100mbit'.")] = None,
    latency: Annotated[str | None, typer.Option(help="There: of links, '0.5ms'.")] = None,
    cores: Annotated[int | None, typer.Option(min=1, help="There: of each host.")] = None,
    hosts: Annotated[
        int | None, typer.Option(min=1, help="There: of workers, the same for all strategies.")
    ] = None,
    margin: Margin = 0.05,
    price: Price = None,
    job: Annotated[str | None, typer.Option(help="The job's name, if there are several.")] = None,
    output: Output = None,
) -> None:
    """Run a script's job under several strategies, alike in all else, and say which is best."""
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
    script: Annotated[Path, typer.Argument(help="A Python file with a job at its top level.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Arguments for the script, after --.")
    ] = None,
    *,
    strategy: Annotated[str, typer.Option(help="Which one.")] = "allreduce()",
    workers: Annotated[str, typer.Option(help="On how many.")] = "1,2,4",
    repeats: Repeats = 3,
    epochs: Annotated[float | None, typer.Option(help="Passes over the data.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Samples to train on.")] = None,
    seconds: Seconds = None,
    target: Target = None,
    seed: Annotated[int | None, typer.Option(help="Of the first repeat; then one more.")] = None,
    slow: Slow = None,
    network: Network = None,
    price: Price = None,
    job: Annotated[str | None, typer.Option(help="The job's name, if there are several.")] = None,
    output: Output = None,
) -> None:
    """Run a script's job on more and more workers; its speedup and efficiency as a table."""
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
    script: Annotated[Path, typer.Argument(help="A Python file with a job at its top level.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Arguments for the script, after --.")
    ] = None,
    *,
    strategy: Annotated[str, typer.Option(help="How, for example 'fully_sharded()'.")],
    workers: Annotated[int, typer.Option(min=1, help="How many there would be.")],
    worker: Annotated[
        int | None, typer.Option(min=0, help="Only this one; default: one of each kind.")
    ] = None,
    job: Annotated[str | None, typer.Option(help="The job's name, if there are several.")] = None,
    json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Say what a worker will send and how much memory it will need; no worker is started."""
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
    """Say how a run went and where its time went."""
    from manyhands.cli.summary import summary as show  # noqa: PLC0415 - see above

    show(run)


@app.command()
def report(
    paths: Annotated[
        list[Path],
        typer.Argument(help="A results.json, folders of comparisons, or folders of runs."),
    ],
    output: Annotated[
        Path | None, typer.Option(help="The page to write; default: report.html in the first.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Of plain runs: 'accuracy >= 0.98'; how long each took.")
    ] = None,
    price: Annotated[
        float | None, typer.Option(min=0, help="Of plain runs: a worker's hour, for their cost.")
    ] = None,
) -> None:
    """Compare runs that were made: a verdict and a table here, charts on a page of HTML."""
    from manyhands.cli.report import report as draw  # noqa: PLC0415 - see above

    draw(paths, output, target, price)


@app.command()
def tensorboard(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    output: Annotated[
        Path | None, typer.Option(help="Where to write; default: tensorboard in the run's folder.")
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
        typer.Option(
            help="The file to write, a picture if it ends in .svg; default: timeline.json."
        ),
    ] = None,
) -> None:
    """Export a run's timeline as a Chrome trace for Perfetto, or draw it as an SVG."""
    from manyhands.cli.timeline import timeline as export  # noqa: PLC0415 - see above

    export(run, output)


def main() -> None:
    """The entry point of the command."""
    app()
