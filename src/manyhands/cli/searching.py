"""`manyhands search` and its options; what it does is loaded only when it is called."""

from pathlib import Path
from typing import Annotated, Any

import typer

from manyhands.cli.options import (
    VIRTUAL,
    Arguments,
    Bandwidth,
    Cores,
    JobName,
    Latency,
    Script,
    Strategy,
    Times,
    changes,
    takes,
)


@takes(
    strategy=Strategy,
    **changes("seed", "epochs", "samples", "seconds", "evaluate_every", "checkpoint"),
    job=JobName,
    times=Times,
    bandwidth=Bandwidth,
    latency=Latency,
    cores=Cores,
)
def search(
    script: Script,
    arguments: Arguments = None,
    *,
    method: Annotated[
        str,
        typer.Option(
            help="How values are chosen: random(), population(size=8), evolution(size=8), "
            "swarm(size=8) or optuna(sampler=tpe)."
        ),
    ] = "random()",
    trials: Annotated[int, typer.Option(min=1, help="Number of trials.")] = 16,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Workers of all trials that are under way together."),
    ] = None,
    trial_workers: Annotated[int, typer.Option(min=1, help="Workers of each trial.")] = 1,
    metric: Annotated[
        str | None,
        typer.Option(
            help="What is compared: accuracy, loss, or 'min perplexity'. Default: the metric of "
            "the job's target, or its first."
        ),
    ] = None,
    virtual: Annotated[
        bool,
        typer.Option("--virtual", help="Make trials on a virtual clock.", rich_help_panel=VIRTUAL),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the search; an interrupted one is continued. Default: a new one in "
            "searches."
        ),
    ] = None,
    **options: Any,
) -> None:
    """Find good values of a job's free parameters by parallel trials."""
    from manyhands.cli.search import search as run  # noqa: PLC0415 - see above

    own = {
        "method": method,
        "trials": trials,
        "workers": workers,
        "trial_workers": trial_workers,
        "metric": metric,
        "virtual": virtual,
        "output": output,
    }
    run(script, arguments or [], options | own)
