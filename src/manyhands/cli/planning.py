"""The subcommands that measure or compute before a run is made, and their options.

What they do is loaded only when one is called, as in `manyhands.cli.app`.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from manyhands.cli.options import (
    Arguments,
    Coding,
    HostList,
    JobName,
    KeyFile,
    Listen,
    Output,
    Script,
    Slow,
    Strategy,
    Workers,
    changes,
    takes,
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
    steps: Annotated[int, typer.Option(min=1, help="Steps of all workers together.")] = 8,
    job: JobName = None,
) -> None:
    """Say whether a job trains the same on several workers as on one, and if not, why."""
    from manyhands.cli.check import check as run  # noqa: PLC0415 - see above

    options = {"strategy": strategy, "workers": workers, "steps": steps, "job": job}
    run(script, arguments or [], options)


def calibrate(
    script: Script,
    arguments: Arguments = None,
    *,
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds that each run trains.")] = 4.0,
    output: Annotated[
        Path | None, typer.Option(help="File to write. Default: calibration.json.")
    ] = None,
    hosts: HostList = None,
    listen: Listen = None,
    key_file: KeyFile = None,
    job: JobName = None,
) -> None:
    """Measure what a job takes here: batches by size, exchanges, shared cores, and between hosts.

    With --hosts, which the others join as they join a run, also the speed of every host, and
    latency and bandwidth of every two.
    """
    from manyhands.cli.plan import calibrate as run  # noqa: PLC0415 - see above

    options = {"seconds": seconds, "output": output, "job": job}
    options |= {"hosts": hosts, "listen": listen, "key_file": key_file}
    run(script, arguments or [], options)


@takes(**changes("global_batch"))
def plan(
    script: Script,
    arguments: Arguments = None,
    *,
    cluster: Annotated[
        str | None,
        typer.Option(
            help="Where: '4 hosts of 2 workers, 1gbit', or sites. Default: the hosts of the "
            "calibration, or this machine."
        ),
    ] = None,
    hosts: HostList = None,
    listen: Listen = None,
    key_file: KeyFile = None,
    strategy: Annotated[
        list[str] | None,
        typer.Option(help="A strategy to consider; can be given several times. Default: many."),
    ] = None,
    workers: Annotated[
        list[int] | None,
        typer.Option(
            help="A number of workers; can be given several times. Default: all, half, a quarter."
        ),
    ] = None,
    slow: Slow = None,
    calibration: Annotated[
        Path | None,
        typer.Option(help="What `manyhands calibrate` stored. Default: it is measured now."),
    ] = None,
    assume: Annotated[
        str | None,
        typer.Option(
            help="Measure nothing: workers that compute at this speed, as in '10 TFLOP/s'."
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds of each measured run.")] = 4.0,
    coding: Coding = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="Rank by the time until a validation metric reaches a value: 'accuracy >= 0.97'. "
            "The fastest of each kind are trained virtually, with real gradients."
        ),
    ] = None,
    budget: Annotated[
        float, typer.Option(min=0, help="Seconds for training virtually, with --target.")
    ] = 120.0,
    failures: Annotated[
        str | None,
        typer.Option(
            help="How often a worker is lost: 'every 6h', 'every 6h, back after 2min'. Rank by the "
            "speed that is left, the goodput."
        ),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            help="With --failures: how often checkpoints are stored, as in '10min, 10s in memory'. "
            "Default: the job's, or 10min."
        ),
    ] = None,
    price: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Price of a worker for an hour. All workers of a host are paid for, and hosts of "
            "servers alone.",
        ),
    ] = None,
    start_up: Annotated[
        str | None,
        typer.Option(
            help="With --price: what is paid for before a run trains, as in '3min'. Default: 3.2s."
        ),
    ] = None,
    by: Annotated[
        Literal["time", "cost"],
        typer.Option(help="Rank by time (speed, or with --target the time to it) or by cost."),
    ] = "time",
    rules: Annotated[
        bool, typer.Option("--rules", help="Try the field's rules of thumb on this job, too.")
    ] = False,
    output: Annotated[Path | None, typer.Option(help="Write a report, an HTML page.")] = None,
    job: JobName = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    **options: Any,
) -> None:
    """Rank strategies for a job on a cluster by predicted speed or time, with what limits each."""
    from manyhands.cli.plan import plan as run  # noqa: PLC0415 - see above

    options |= {
        "cluster": cluster,
        "hosts": hosts,
        "listen": listen,
        "key_file": key_file,
        "strategy": strategy,
        "workers": workers,
        "slow": slow,
        "calibration": calibration,
        "assume": assume,
        "seconds": seconds,
        "coding": coding,
        "target": target,
        "budget": budget,
        "failures": failures,
        "checkpoint": checkpoint,
        "price": price,
        "start_up": start_up,
        "by": by,
        "rules": rules,
        "output": output,
        "job": job,
        "json": json,
    }
    run(script, arguments or [], options)


def costs(
    arguments: Arguments = None,
    *,
    parameters: Annotated[
        str | None, typer.Option(help="Number of parameters that are averaged: '25.6M'.")
    ] = None,
    size: Annotated[
        str | None,
        typer.Option("--bytes", help="Bytes in place of parameters: '100MB'; a range: '4KB..1GB'."),
    ] = None,
    script: Annotated[
        Path | None,
        typer.Option(help="Take the parameters from this script's job, and show its layers."),
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(help="Numbers of workers: 64; 2,3,4; or 2..1024, doubling. Default: 2..1024."),
    ] = None,
    latency: Annotated[str, typer.Option(help="Latency of a message.")] = "50us",
    bandwidth: Annotated[str, typer.Option(help="Bandwidth of each worker's link.")] = "10gbit",
    reduction: Annotated[
        str | None,
        typer.Option(help="Speed of adding vectors up: '10GB/s'; default: in no time."),
    ] = None,
    parameter_bytes: Annotated[int, typer.Option(min=1, help="Bytes of a parameter.")] = 4,
    servers: Annotated[int, typer.Option(min=1, help="Number of sharded servers.")] = 4,
    islands: Annotated[
        int | None,
        typer.Option(min=1, help="Islands of the hierarchical servers; default: √workers."),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="Samples for the table of layers; default: the job's batch."),
    ] = None,
    job: JobName = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    chart: Annotated[
        Path | None,
        typer.Option(help="SVG or PDF file: the fastest algorithm over workers and bytes."),
    ] = None,
) -> None:
    """Print how long an allreduce takes by each algorithm, and which is the fastest where."""
    from manyhands.cli.costs import costs as run  # noqa: PLC0415 - see above

    options = {
        "parameters": parameters,
        "bytes": size,
        "script": script,
        "workers": workers,
        "latency": latency,
        "bandwidth": bandwidth,
        "reduction": reduction,
        "parameter_bytes": parameter_bytes,
        "servers": servers,
        "islands": islands,
        "batch": batch,
        "job": job,
        "json": json,
        "chart": chart,
    }
    run(arguments or [], options)


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
    calibration: Annotated[
        Path | None,
        typer.Option(help="What `manyhands calibrate --hosts` stored: says which one is slow."),
    ] = None,
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
        "calibration": calibration,
        "job": job,
        "all": all_,
        "json": json,
    }
    run(script, arguments or [], options)
