"""Records of a comparison's design and script, and the design that a record describes.

A field of `Design`, `Budget` or `VirtualConditions` that affects runs has a field of the same name
in `DesignRecord`, or one in `Comparison`.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from manyhands.faults import Faults
from manyhands.lab.design import Budget, Design, Script, VirtualConditions
from manyhands.lab.entrants import Sweeps, read_entrants
from manyhands.lab.reproduction.assumed import assumptions_of
from manyhands.pacing import Pace
from manyhands.reports import DesignRecord, ScriptRecord
from manyhands.script.job_changes import LIMITS
from manyhands.verbs.assumed_values import TIMES
from manyhands.virtual import times as read_times

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from manyhands.reports import Comparison

_CONDITIONS = ("bandwidth", "latency", "cores", "hosts", "coding", "time_only")


def record_design(design: Design) -> DesignRecord:
    """What was asked of a comparison beside its strategies, workers and repeats."""
    limits = {name: getattr(design.budget, name) for name in LIMITS}
    conditions = {}
    if design.virtual is not None:
        conditions = {name: getattr(design.virtual, name) for name in _CONDITIONS}
        times = design.virtual.times
        conditions["times"] = str(read_times(TIMES) if times is None else times)
        conditions["assumed"] = assumptions_of(design)
    return DesignRecord(
        kind="live" if design.virtual is None else "virtual",
        seed=design.seed,
        lr=design.lr,
        fixed=tuple(_fixed(design)),
        slow=tuple(map(str, design.slow)),
        faults=design.faults.text,
        network=design.network,
        **limits,
        **conditions,
    )


def _fixed(design: Design) -> Iterator[str]:
    """The strategies that are not swept, each once for all learning rates."""
    rates = design.sweeps.values("lr")
    for entrant in design.entrants:
        if entrant.curve not in design.sweeps.strategies and entrant.lr in ("", *rates[:1]):
            yield entrant.written


def recorded_design(results: Comparison) -> DesignRecord:
    """What was asked of a stored comparison.

    Raises:
        ValueError: the results do not hold it: they are of an earlier version.
    """
    if results.design is None:
        raise ValueError(
            "the results do not hold the design of the comparison: Manyhands "
            f"{results.manyhands or 'of an earlier version'} did not record it. Make the "
            "comparison again with manyhands compare"
        )
    return results.design


def design_of(results: Comparison, script: Script | None) -> Design:
    """The design by which a stored comparison was made.

    Raises:
        ValueError: the results do not hold it, or a strategy in them is not known.
    """
    record = recorded_design(results)
    virtual = None
    if record.kind == "virtual":
        conditions = {name: getattr(record, name) for name in _CONDITIONS}
        assumes_times = any(one.name == "times" for one in record.assumed)
        virtual = VirtualConditions(times=None if assumes_times else record.times, **conditions)
    sweeps = Sweeps.read(results.sweeps)
    return Design(
        entrants=read_entrants(record.fixed, sweeps),
        workers=results.workers,
        script=script,
        seed=record.seed,
        budget=Budget(**{name: getattr(record, name) for name in LIMITS}),
        slow=tuple(map(Pace.read, record.slow)),
        faults=Faults.read(record.faults),
        virtual=virtual,
        network=record.network,
        cluster=results.layout,
        lr=record.lr,
        sweeps=sweeps,
        repeats=results.repeats,
        margin=results.margin,
        price=results.price,
    )


def record_script(script: Script, folder: Path) -> ScriptRecord:
    """The script of a comparison whose results are in that folder, without absolute paths."""
    content = script.path.read_bytes()
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        text = None
    return ScriptRecord(
        name=script.path.name,
        path=_relative(script.path.resolve(), folder.resolve()),
        sha256=hashlib.sha256(content).hexdigest(),
        text=text,
        job=script.job,
        arguments=script.arguments,
    )


def _relative(path: Path, folder: Path) -> str | None:
    """A file's path from a folder below its own; None elsewhere, whose path names other folders.

    >>> from pathlib import Path
    >>> _relative(Path("/a/b/train.py"), Path("/a/b/c/d"))
    '../../train.py'
    >>> _relative(Path("/home/me/train.py"), Path("/tmp/out"))
    """
    if not folder.is_relative_to(path.parent):
        return None
    up = len(folder.relative_to(path.parent).parts)
    return "/".join([*[".."] * up, path.name])
