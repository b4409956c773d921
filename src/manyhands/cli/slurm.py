"""`manyhands slurm` and its options; what it does is loaded only when it is called."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from manyhands.cli.exit import leave
from manyhands.cli.options import (
    CHANGES,
    Arguments,
    Durability,
    JobName,
    Listen,
    Patience,
    Resume,
    Script,
    Slow,
    Strategy,
    Values,
    changes,
    takes,
    written,
)


@takes(
    strategy=Strategy,
    **changes("epochs", "samples", "seconds", "target", "seed", "lr", "evaluate_every", "measures"),
    slow=Slow,
    job=JobName,
    values=Values,
    durability=Durability,
    patience=Patience,
    keep=CHANGES["keep"],
    resume=Resume,
    listen=Listen,
)
def slurm(
    script: Script,
    arguments: Arguments = None,
    *,
    nodes: Annotated[int, typer.Option(min=1, help="Number of nodes.")] = 1,
    workers_per_node: Annotated[int, typer.Option(min=1, help="Workers on each node.")] = 1,
    time: Annotated[
        str | None,
        typer.Option(help="Time limit, in Slurm's form: 90 (minutes), 1:30:00 or 2-12:00:00."),
    ] = None,
    partition: Annotated[
        str | None, typer.Option(help="Partition of the cluster; default: the cluster's.")
    ] = None,
    sbatch: Annotated[
        list[str] | None,
        typer.Option(
            help="Another option of sbatch: '--gpus-per-node=4'; can be given several times."
        ),
    ] = None,
    grace: Annotated[
        int,
        typer.Option(
            min=30,
            help="Seconds before the time limit at which the run stores a checkpoint and ends.",
        ),
    ] = 60,
    checkpoint: Annotated[
        str, typer.Option(help="When to store a checkpoint: 10min, '1000 steps', 50000.")
    ] = "10min",
    output: Annotated[
        Path | None,
        typer.Option(help="Folder for the run; default: one in runs with the id of the job."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="Batch file to write; default: named as the script.")
    ] = None,
    submit: Annotated[bool, typer.Option("--submit", help="Submit the file to Slurm.")] = False,
    **options: Any,
) -> None:
    """Write a batch file that trains on nodes of Slurm and continues after its time limit."""
    from manyhands.launchers.slurm import BatchJob  # noqa: PLC0415 - see above
    from manyhands.launchers.slurm import submit as hand_in  # noqa: PLC0415

    if not script.is_file():
        leave(f"manyhands: there is no file {script}")
    options["checkpoint"] = checkpoint
    path = file or Path(f"{script.stem}.sbatch")
    try:
        BatchJob(
            script=script,
            options=[*written(options)],
            arguments=arguments or (),
            nodes=nodes,
            workers_per_node=workers_per_node,
            time=time,
            partition=partition,
            grace=grace,
            output=output,
            sbatch=sbatch or (),
            folder=Path.cwd(),
        ).write(path)
        if not submit:
            typer.echo(f"written: {path}\nsubmit it with: sbatch {path}")
            return
        number = hand_in(path)
    except ValueError as error:
        leave(f"manyhands: {error}")
    typer.echo(f"written: {path}\nsubmitted as job {number}; its output: {path.stem}-{number}.out")


def enter_allocation(hosts: str | None) -> None:
    """Go on on the first node, if `--hosts slurm` was given outside of the allocation's nodes."""
    if hosts is None or hosts.strip() != "slurm":
        return
    from manyhands.launchers.slurm import enter_first_node, is_outside  # noqa: PLC0415 - see above

    try:
        if is_outside():
            enter_first_node(sys.argv[1:])
    except ValueError as error:
        leave(f"manyhands: {error}")
