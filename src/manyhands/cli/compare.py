"""`manyhands compare`: a script's job under several strategies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from manyhands.cli.exit import leave
from manyhands.cli.script_job import enter, load_job, paced
from manyhands.cluster import Cluster
from manyhands.faults import Faults
from manyhands.lab.compare import Compared, carry_out, chosen
from manyhands.lab.design import Budget, Design, Script, VirtualConditions
from manyhands.lab.entrants import Sweeps, read_entrants
from manyhands.reports.render.table import table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from manyhands.job import Job
    from manyhands.reports import Comparison

_ON_A_VIRTUAL_CLUSTER = (
    *("times", "bandwidth", "latency", "cores", "hosts", "coding", "time_only"),
)


def compare(script: Path, arguments: list[str], options: Mapping[str, Any]) -> None:
    """Execute the script up to its main guard, and compare strategies on its job."""
    compared = conduct(script, arguments, options)
    Console().print(table(compared.results))
    typer.echo(compared.where())
    leave_if_failed(compared.results)


def leave_if_failed(results: Comparison) -> None:
    """Exit with code 1 if a run failed: a script that goes on would take the rest for all."""
    failed = [run for run in results.runs if run.status == "failed"]
    if failed:
        where = ", ".join(dict.fromkeys(run.where for run in failed if run.where))
        at = f", at {where}" if where else ""
        leave(
            f"manyhands: {len(failed)} of {len(results.runs)} runs failed{at}; remove their "
            "folders and give the same --output to repeat them",
            1,
        )


def conduct(script: Path, arguments: Sequence[str], options: Mapping[str, Any]) -> Compared:
    """Make the comparison that the options describe; on errors and Ctrl-C exit with a message."""
    enter(script, arguments)
    name, job, _ = load_job(script, options.get("job"))
    where = Script(path=script.resolve(), job=name, arguments=tuple(arguments))
    console = Console(stderr=True)
    output: Path | None = options.get("output")
    try:
        design = design_of(job, where, paced(options))
        return carry_out(design, job, output, console, processes=options.get("processes"))
    except (TypeError, ValueError) as error:
        leave(f"manyhands: {error}")
    except KeyboardInterrupt:
        kept = f"; continue with the same command and --output {output}" if output else ""
        leave(f"manyhands: interrupted; all processes are ended{kept}", 130)


def design_of(job: Job, script: Script, options: Mapping[str, Any]) -> Design:
    """The design that the options describe."""
    asked = {name: options.get(name) for name in _ON_A_VIRTUAL_CLUSTER}
    virtual = bool(options.get("virtual"))
    for name, value in asked.items():
        if value is not None and not virtual:
            raise ValueError(
                f"--{name.replace('_', '-')} describes a virtual cluster: add --virtual"
            )
    if virtual and options.get("network"):
        raise ValueError("--network requires real processes: use --bandwidth with --virtual")
    cluster = None if options.get("cluster") is None else Cluster.parse(options["cluster"])
    seed = options.get("seed")
    sweeps = Sweeps.read(options.get("sweep") or ())
    if sweeps.workers and options.get("workers"):
        raise ValueError("--workers is given twice, fixed and swept: keep one")
    return Design(
        entrants=read_entrants(chosen(options.get("strategies"), sweeps), sweeps),
        workers=sweeps.workers or read_numbers(options.get("workers"), cluster),
        sweeps=sweeps,
        lr=options.get("lr"),
        script=script,
        seed=job.seed if seed is None else seed,
        budget=Budget(**{name: options.get(name) for name in Budget.__dataclass_fields__}),
        slow=options.get("slow") or (),
        faults=Faults.read(options.get("faults") or ""),
        network=options.get("network") or "",
        virtual=VirtualConditions(**asked) if virtual else None,
        cluster=cluster,
        repeats=options["repeats"],
        margin=options["margin"],
        price=options.get("price"),
    )


def read_numbers(text: str | None, cluster: Cluster | None = None) -> tuple[int, ...]:
    """Parse numbers of workers, separated by commas; by default the cluster's or this machine's."""
    if text is None:
        return ((cluster or Cluster.local()).default_workers(),)
    try:
        numbers = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise ValueError(f"workers must be numbers, as in 4 or 1,2,4, got {text!r}") from None
    return numbers
