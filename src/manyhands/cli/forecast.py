"""`manyhands forecast`: the memory and traffic of a worker, before any worker is started."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from manyhands.cli.exit import leave
from manyhands.cli.script_job import enter, load_job
from manyhands.costs import sent_per_worker
from manyhands.live.agent.memory_check import estimate
from manyhands.parameters.initial.deferred import on_meta
from manyhands.parameters.layout import Layout
from manyhands.placements.forecasts.dry_run import dry_run
from manyhands.reports.formatting import size
from manyhands.strategies import check_job, placement_of, protocol_of, strategy
from manyhands.verbs.progress import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from manyhands.costs import Collective
    from manyhands.job import Job
    from manyhands.placements.forecasts.dry_run import DryRun
    from manyhands.protocols import StrategyProtocol


def forecast(script: Path, arguments: list[str], options: Mapping[str, Any]) -> None:
    """Execute the script up to its main guard, and dry-run the workers of its job."""
    enter(script, arguments)
    _, job, _ = load_job(script, options["job"])
    workers, base = options["workers"], resident()
    begun = time.monotonic()
    try:
        given = strategy(options["strategy"])
        chosen = placement_of(given)
        protocol = protocol_of(given)
        if protocol is not None:
            simulated = f"manyhands simulate {script} --strategy '{given}' --workers {workers}"
            _forecast_protocol(protocol, job, workers, simulated, base, as_json=options["json"])
            return
        assert chosen is not None  # noqa: S101 - a strategy is a protocol or a placement
        chosen.check(workers)
        check_job(chosen, job, workers)
        played = (
            chosen.distinct_ranks(workers) if options["worker"] is None else (options["worker"],)
        )
        if max(played) >= workers:
            leave(
                f"manyhands: no such rank: {max(played)}; there are {workers} workers, "
                f"0 to {workers - 1}"
            )
        found: dict[int, dict[str, Any]] = {}

        def words() -> str:
            if options["json"] and not sys.stderr.isatty():
                return ""  # both streams may go to one file
            rank = played[min(len(found), len(played) - 1)]
            return f"dry run of worker {rank} of {workers}: {len(found)} of {len(played)} done"

        with shown(words):
            for rank in played:
                found[rank] = _result(dry_run(chosen, job, workers, rank), workers)
    except (TypeError, ValueError) as error:
        leave(f"manyhands: {error}")
    result = {
        "strategy": str(chosen),
        "workers": workers,
        "seconds": round(time.monotonic() - begun, 3),
        "shared": chosen.shared_bytes(job, workers),
        "process": base,
        "played": [{"worker": rank, **one} for rank, one in found.items()],
    }
    if options["json"]:
        typer.echo(json.dumps(result, indent=2))
    else:
        _show(result)


def _forecast_protocol(
    protocol: StrategyProtocol, job: Job, workers: int, simulated: str, base: int, *, as_json: bool
) -> None:
    """Print the payload of a step by the protocol's formula, and the least memory."""
    protocol.check(workers)
    check_job(protocol, job, workers)
    parameters = _bytes_of_parameters(job)
    payload = protocol.step_payload(workers, parameters)
    if payload is None:
        leave(f"manyhands: {protocol} states no bytes per step; simulate it: {simulated}")
    need = estimate(job, protocol, workers, workers, ["cpu"], forks=True)
    worker, server = need.model + need.state, need.shared // max(1, need.servers)
    if as_json:
        result = {
            "strategy": str(protocol),
            "workers": workers,
            "parameters": parameters,
            "payload": {"sent": payload.sent, "received": payload.received},
            "memory": {"worker": worker, "server": server, "process": base},
        }
        typer.echo(json.dumps(result, indent=2))
        return
    number = f"{workers:,} worker{'' if workers == 1 else 's'}"
    typer.echo(
        f"{protocol} on {number}\n\n"
        f"payload of a worker in a step: {size(payload.sent)} sent, {size(payload.received)} "
        f"received, for {size(parameters)} of parameters\n"
        f"memory: {size(worker)} for the parameters, update and optimizer state of a worker"
        f"{f', {size(server)} for those of a server' if need.servers else ''}; activations and "
        f"messages under way come on top\n{_beside(base)}\n"
        f"times of a protocol are not forecast; simulate it: {simulated}"
    )


def resident() -> int:
    """Bytes of this process, which has loaded torch and the script as a worker has; 0: unknown."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _beside(base: int) -> str:
    """What a process has beside the model."""
    return (
        f"a process with torch and the script loaded has {size(base)} beside it, most of it "
        "shared by the workers of a host"
    )


def _bytes_of_parameters(job: Job) -> int:
    """Bytes that servers or peers hold and exchange; the model is not allocated if possible."""
    try:
        model = on_meta(job.model)
        return Layout.of(model, job.make_optimizer(model), 1).nbytes
    except Exception:  # noqa: BLE001 - not every model can be created on the meta device
        model = job.model()
        return Layout.of(model, job.make_optimizer(model), 1).nbytes


def _result(one: DryRun, workers: int) -> dict[str, Any]:
    counted = Counter(one.step)
    step = [
        {
            "kind": each.kind,
            "workers": each.workers or workers,
            "size": each.size,
            "times": times,
            "sent": round(times * _sent(each, workers)),
        }
        for each, times in sorted(counted.items(), key=lambda item: (item[0].kind, -item[0].size))
    ]
    sent = round(sum(times * _sent(each, workers) for each, times in counted.items()))
    return {"peak": one.peak, "held": one.held, "sent": sent, "step": step}


def _sent(one: Collective, workers: int) -> float:
    """Bytes that the worker of the dry run sends; point-to-point messages are its own."""
    return one.size if one.kind == "send" else sent_per_worker(one, workers)


def _show(result: Mapping[str, Any]) -> None:
    # Not at the top: JSON output needs no table.
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    console = Console(highlight=False, markup=False)
    number = f"{result['workers']:,} worker{'' if result['workers'] == 1 else 's'}"
    console.print(f"{result['strategy']} on {number}\n", style="bold")
    most = max(result["played"], key=lambda one: one["peak"])
    held = Table("worker", box=None, pad_edge=False, header_style="bold")
    for name in ("peak memory", "between steps", "sent per step"):
        held.add_column(name, justify="right")
    for one in result["played"]:
        held.add_row(str(one["worker"]), *(size(one[key]) for key in ("peak", "held", "sent")))
    console.print(held)
    console.print(f"\n{_beside(result['process'])}", soft_wrap=True)
    if result["shared"]:
        more = f"{size(result['shared'])} more to exchange"
        console.print(f"\nworkers of one host need {more}, all of them together")
    console.print(f"\nSent by worker {most['worker']} in a step\n", style="bold")
    by_kind: dict[tuple[str, int], list[int]] = {}
    for each in most["step"]:
        counted = by_kind.setdefault((each["kind"], each["workers"]), [0, 0])
        counted[0] += each["times"]
        counted[1] += each["sent"]
    sent = Table("what", box=None, pad_edge=False, header_style="bold")
    for name in ("among", "times", "sent"):
        sent.add_column(name, justify="right")
    for (kind, among), (times, total) in by_kind.items():
        sent.add_row(kind, f"{among:,}", f"{times:,}", size(total))
    console.print(sent if by_kind else "nothing")
    console.print(f"\ncomputed in {result['seconds']:.1f} s, in one process")
