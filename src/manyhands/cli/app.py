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


@app.command(context_settings={"allow_interspersed_args": True})
def train(
    script: Annotated[Path, typer.Argument(help="A Python file with a job at its top level.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Arguments for the script, after --.")
    ] = None,
    strategy: Annotated[
        str | None, typer.Option(help="How, for example 'allreduce()'; see `strategies`.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="How many workers.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the data.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Samples to train on.")] = None,
    seed: Annotated[int | None, typer.Option(help="The run's seed.")] = None,
    output: Annotated[Path | None, typer.Option(help="A folder for the run.")] = None,
) -> None:
    """Train a script's job on real processes. What is given here wins over the script."""
    from manyhands.cli.early import nursery_ahead  # noqa: PLC0415 - see above

    with nursery_ahead(script, strategy, workers):
        from manyhands.cli.train import train as run  # noqa: PLC0415
        from manyhands.verbs.command import Command  # noqa: PLC0415

        command = Command(strategy, workers, epochs, samples, seed, output)
        run(script, arguments or [], command)


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
    seed: Annotated[int | None, typer.Option(help="The run's seed.")] = None,
    times: Annotated[
        str | None, typer.Option(help="Seconds per batch: 'lognormal(0.1, cv=0.3)'.")
    ] = None,
    bandwidth: Annotated[
        str | None, typer.Option(help="Of links, '100mbit'; gives each process its own host.")
    ] = None,
    latency: Annotated[str | None, typer.Option(help="Of links: '0.5ms'.")] = None,
    cores: Annotated[int | None, typer.Option(min=1, help="Cores of each host.")] = None,
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
        "seed": seed,
        "times": times,
        "bandwidth": bandwidth,
        "latency": latency,
        "cores": cores,
        "service": service,
        "handover": handover,
        "detection": detection,
        "faults": faults,
        "output": output,
    }
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
