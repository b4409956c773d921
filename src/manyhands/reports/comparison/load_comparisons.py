"""Loading of comparisons from results files, folders of comparisons, or plain runs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msgspec import structs

from manyhands.reports.comparison.measure import measure
from manyhands.reports.comparison.results import FILE, Comparison, Machine, RunResult, read_results
from manyhands.reports.figures.outcome import settings
from manyhands.reports.formatting import listed
from manyhands.trace import Trace, read

_OF_A_RUN: Final = frozenset(("strategy", "workers", "seed"))
"""Settings by which runs of one comparison differ."""
_VERSIONS: Final = ("manyhands", "python", "torch")
_OF_PLACES: Final = frozenset(("hosts", "workers by host", "cores", "threads", "stretch"))
"""Settings that follow from the number of workers and from the machine."""


@dataclass(frozen=True, slots=True)
class Source:
    """A comparison, and the folder that its runs' folders are relative to."""

    comparison: Comparison
    folder: Path


def gather(
    paths: Sequence[Path], *, target: str | None = None, price: float | None = None
) -> list[Source]:
    """The comparisons in these paths.

    A `results.json`, or a folder that holds one, is a comparison by itself. All other folders are
    runs, or hold runs, and are compared with each other, live ones and virtual ones apart. A target
    or a price is for those.
    """
    found, runs = [], []
    for path in paths:
        if path.is_file() or (path / FILE).is_file():
            found.append(Source(read_results(path), path.parent if path.is_file() else path))
        elif (path / "trace").is_dir():
            runs.append(path)
        elif below := sorted(each.parent for each in path.glob("*/trace") if each.is_dir()):
            runs += below
        else:
            raise FileNotFoundError(
                f"{path} contains neither results nor runs: use a {FILE}, the folder of a "
                "comparison, or folders of runs"
            )
    traces = [read(run) for run in runs]
    apart = [[trace for trace in traces if trace.kind == kind] for kind in ("live", "virtual")]
    found += (
        Source(of_runs(alike, target=target, price=price), Path()) for alike in apart if alike
    )
    return found


def of_runs(
    traces: Iterable[Trace], *, target: str | None = None, price: float | None = None
) -> Comparison:
    """A comparison of separate runs.

    The first run of every strategy makes the first repeat, and so on, in the order of time. What
    all runs have in common is taken for the comparison's; the machine is known by name only. A
    setting that differs between runs is part of their strategies' names, so that runs which differ
    in more than their seeds are not taken for repeats.
    """
    ordered = sorted(traces, key=lambda trace: trace.wall)
    runs: list[RunResult] = []
    for trace, label in zip(ordered, _labels(ordered), strict=True):
        run = measure(trace, strategy=label, target=target, price=price)
        alike = [r for r in runs if (r.kind, r.label) == (run.kind, run.label)]
        runs.append(structs.replace(run, repeat=len(alike)))
    common = _common(ordered)
    hosts = {worker.header.host for trace in ordered for worker in trace.workers}
    return Comparison(
        manyhands=common.get("manyhands", ""),
        python=common.get("python", ""),
        torch=common.get("torch", ""),
        job={name: value for name, value in common.items() if name not in _VERSIONS},
        machine=Machine(host=min(hosts, default="")),
        hosts=max(1, len(hosts)),
        cluster=common.get("cluster", ""),
        budget=_budget(common),
        budget_seconds=float(common["seconds"]) if "seconds" in common else None,
        target=target or common.get("target"),
        price=price,
        strategies=tuple(dict.fromkeys(run.strategy for run in runs)),
        workers=tuple(sorted({run.workers for run in runs})),
        repeats=1 + max(run.repeat for run in runs),
        runs=tuple(runs),
    )


def _labels(traces: Sequence[Trace]) -> list[str | None]:
    """The name of every run's strategy, with the settings in which runs differ; None if unknown."""
    each = [
        {
            setting.name: setting.value
            for setting in settings(trace)
            # Where servers are by default follows from the number of workers.
            if (setting.name, setting.source) != ("servers on", "default")
        }
        for trace in traces
    ]
    names = dict.fromkeys(name for one in each for name in one)
    differing = [
        name
        for name in names
        if name not in _OF_A_RUN | _OF_PLACES | {*_VERSIONS}
        and len({one.get(name) for one in each}) > 1
    ]
    return [
        one.get("strategy")
        and ", ".join(
            [one["strategy"], *(f"{name} {one[name]}" for name in differing if name in one)]
        )
        for one in each
    ]


def _common(traces: Sequence[Trace]) -> dict[str, str]:
    """The settings that all runs have and have alike, but those that make a run itself."""
    each = [{setting.name: setting.value for setting in settings(trace)} for trace in traces]
    first, *others = each
    return {
        name: value
        for name, value in first.items()
        if name not in _OF_A_RUN and all(other.get(name) == value for other in others)
    }


def _budget(common: dict[str, str]) -> str:
    units = ("epochs", "samples", "seconds")
    given = [f"{common[unit]} {unit}" for unit in units if unit in common]
    if "target" in common:
        given.append(f"until {common['target']}")
    return listed(given)
