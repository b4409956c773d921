"""Options that several subcommands have: one name, one help text and one type for each.

Those that change a job are declared in `manyhands.script.job_changes`, and are read from there.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import typer
from msgspec import Meta

from manyhands.notation.description import field_docstrings
from manyhands.script.job_changes import JobChanges

Function = TypeVar("Function", bound=Callable[..., None])

VIRTUAL = "Virtual cluster"


def takes(**options: Any) -> Callable[[Function], Function]:
    """Give a subcommand more options; it receives their values by name, in its `**options`.

    Args:
        options: by name, the annotated types of the options. They are None unless they are given.
    """

    def with_options(function: Function) -> Function:
        signature = inspect.signature(function)
        own = [
            one
            for one in signature.parameters.values()
            if one.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        taken = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotated
            )
            for name, annotated in options.items()
        ]
        # Arguments first, then the options that were declared elsewhere, then its own.
        first = [one for one in own if one.kind is not inspect.Parameter.KEYWORD_ONLY]
        rest = [one for one in own if one.kind is inspect.Parameter.KEYWORD_ONLY]
        function.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*first, *taken, *rest]
        )
        return function

    return with_options


def _change(annotation: Any, text: str) -> Any:
    """The option of a field of `JobChanges`, with its docstring as help."""
    (kind,) = (one for one in get_args(annotation) if one is not type(None))
    given, *bounds = get_args(kind) or (kind,)
    least = next((one.ge for one in bounds if isinstance(one, Meta)), None)
    return Annotated[given | None, typer.Option(help=text, min=least)]


def _changes() -> dict[str, Any]:
    texts, types = field_docstrings(JobChanges), get_type_hints(JobChanges, include_extras=True)
    return {name: _change(types[name], text) for name, text in texts.items()}


CHANGES = _changes()
"""The options that replace settings of a job, by name."""


def changes(*names: str) -> dict[str, Any]:
    """Those of these names."""
    return {name: CHANGES[name] for name in names}


Script = Annotated[Path, typer.Argument(help="A Python file with a job at its top level.")]
Arguments = Annotated[list[str] | None, typer.Argument(help="Arguments for the script, after --.")]
Strategy = Annotated[
    str | None,
    typer.Option(help="How to train, as in 'ssp(staleness=4)'; see `manyhands strategies`."),
]
Workers = Annotated[int | None, typer.Option(min=1, help="Number of workers.")]
Slow = Annotated[
    list[str] | None,
    typer.Option(
        help="Slow a worker on purpose: '2:4x' makes worker 2 compute 4 times as long; 'all:1.2x'."
    ),
]
Faults = Annotated[
    str | None,
    typer.Option(
        help="What goes wrong on purpose: 'crash worker 2 at 20 s; stop worker 1 from 30 s to "
        "45 s' or 'random(every=15, seed=3)'."
    ),
]
JobName = Annotated[
    str | None,
    typer.Option(
        help="Name of the script's job, or of a function without arguments that returns it; code "
        "below its main guard is not executed."
    ),
]
Values = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Value of a free parameter of the job: 'lr=0.01'; can be given several times.",
    ),
]
Output = Annotated[
    Path | None, typer.Option(help="Folder for the run; default: a new one in runs.")
]
Durability = Annotated[
    str | None,
    typer.Option(
        help="Failures that acknowledged updates of servers survive: none, process or power."
    ),
]
Patience = Annotated[
    float | None,
    typer.Option(
        min=6,
        help="Seconds without progress until a process is ended and replaced: longer than the "
        "longest step; default: 30 without a heartbeat, 1800 with heartbeats.",
    ),
]
Resume = Annotated[
    str | None,
    typer.Option(help="Continue from the last checkpoint of a run: its folder, or a URL."),
]
HostList = Annotated[
    str | None,
    typer.Option(
        "--hosts",
        help="Hosts and their workers, this one first: 'a:4, b:4' (see `join`); or the system that "
        "has them: slurm, kubernetes, ray.",
    ),
]
Listen = Annotated[
    str | None,
    typer.Option(help="Address at which other hosts reach this one: ADDRESS or ADDRESS:PORT."),
]
ServersOn = Annotated[
    str | None,
    typer.Option(
        help="Hosts of the servers, one after the other: 'a, b' or all; default: those without "
        "workers, or else all."
    ),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(help="Key of the run, if all hosts have it already; default: a new one."),
]
Network = Annotated[
    str | None,
    typer.Option(
        help="Put each worker behind a link of its own, on this machine: '100mbit', "
        "'100mbit, 20ms' (slow there and back too) or '100mbit, servers apart'."
    ),
]
ClusterText = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        help="Sites, hosts and links: '2 sites of 8 workers, 1gbit within, 100mbit and 40ms "
        "between'. Real processes run in network namespaces of this machine.",
    ),
]
Times = Annotated[
    str | None,
    typer.Option(
        help="Seconds that a worker computes on a batch: 'lognormal(0.1, cv=0.3)'.",
        rich_help_panel=VIRTUAL,
    ),
]
Bandwidth = Annotated[
    str | None,
    typer.Option(
        help="Bandwidth of the links between hosts: '100mbit'; default: all are on one host.",
        rich_help_panel=VIRTUAL,
    ),
]
Latency = Annotated[
    str | None,
    typer.Option(help="Latency of the links: '0.5ms'; default: 0.1ms.", rich_help_panel=VIRTUAL),
]
Cores = Annotated[
    int | None, typer.Option(min=1, help="Cores of each host.", rich_help_panel=VIRTUAL)
]
Placing = Annotated[
    str | None,
    typer.Option(
        help="Hosts of the servers: 'apart', or 'colocated' with the workers.",
        rich_help_panel=VIRTUAL,
    ),
]
Coding = Annotated[
    str | None,
    typer.Option(
        help="Speed at which codecs encode, and decode, vectors: '2GB/s', or 'free'. Default: as "
        "measured on a core of 2.5 GHz.",
        rich_help_panel=VIRTUAL,
    ),
]
TimeOnly = Annotated[
    bool | None,
    typer.Option(
        "--time-only",
        help="Compute no gradients, parameters and metrics: only times, in far less time.",
        rich_help_panel=VIRTUAL,
    ),
]

# Of several runs.
Sweep = Annotated[
    list[str] | None,
    typer.Option(
        help="Values to compare, for a curve: 'softsync(wait_for=1..8)', 'workers=2..16 step 2' or "
        "'bandwidth={10mbit, 1gbit}'; can be given several times."
    ),
]
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


def written(options: Mapping[str, Any]) -> Iterator[str]:
    """Options as command-line arguments."""
    for field, value in options.items():
        name = {"values": "set"}.get(field, field.replace("_", "-"))
        for one in value if isinstance(value, list) else [value]:
            if one is True:
                yield f"--{name}"
            elif one is not None and one is not False:
                yield f"--{name}={one}"
