"""The subcommands that follow or export runs, or make comparisons again, and their options.

What they do is loaded only when one is called, as in `manyhands.cli.app`.
"""

from pathlib import Path
from typing import Annotated

import typer

from manyhands.cli.options import Price


def export(
    paths: Annotated[
        list[Path],
        typer.Argument(help="A results.json, folders of comparisons, or folders of runs."),
    ],
    output: Annotated[
        Path | None, typer.Option(help="Folder to write; default: export in the first folder.")
    ] = None,
    formats: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="Files to write, default all: csv,jsonl,svg,pdf. Or weights: the model of a run, "
            "in several files with an index if it is large, as Hugging Face's libraries read it.",
        ),
    ] = None,
) -> None:
    """Export runs that were made: tables as CSV and JSON lines, charts as SVG and PDF, weights."""
    from manyhands.cli.export import export as write  # noqa: PLC0415 - see above

    write(paths, output, formats)


def reproduce(
    results: Annotated[Path, typer.Argument(help="A results.json, or the folder that holds it.")],
    output: Annotated[
        Path | None,
        typer.Option(help="Folder for the new comparison; default: a new one in comparisons."),
    ] = None,
    script: Annotated[
        Path | None,
        typer.Option(help="The script to use; default: the stored one, or its file if unchanged."),
    ] = None,
) -> None:
    """Make a stored comparison again, and say whether it came out the same (exit code 0) or not."""
    from manyhands.cli.reproduce import reproduce as run  # noqa: PLC0415 - see above

    run(results, output, script)


def tensorboard(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    output: Annotated[
        Path | None, typer.Option(help="Folder to write; default: tensorboard in the run's folder.")
    ] = None,
) -> None:
    """Export a run's loss, metrics and throughput as TensorBoard scalars."""
    from manyhands.cli.tensorboard import tensorboard as export  # noqa: PLC0415 - see above

    export(run, output)


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


def watch(
    run: Annotated[Path, typer.Argument(help="A run's folder.")],
    once: Annotated[
        bool, typer.Option("--once", help="Print the state of the run once, and end.")
    ] = False,
) -> None:
    """Follow a run while it goes on: workers, speed, loss, faults; then print its summary."""
    from manyhands.cli.watch import watch as follow  # noqa: PLC0415 - see above

    follow(run, once=once)


def summary(run: Annotated[Path, typer.Argument(help="A run's folder.")]) -> None:
    """Print a run's summary: its outcome, and where its time went."""
    from manyhands.cli.summary import summary as show  # noqa: PLC0415 - see above

    show(run)


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
