"""Measures the job of a script that calls for it: `mh.calibrate`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from manyhands.lab.calibration.measure import SECONDS, measure
from manyhands.lab.calibration.several_hosts import HostsFailed, measure_hosts, places
from manyhands.lab.design import script_of
from manyhands.script import loading as scripts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import FrameType

    from manyhands.job import Job
    from manyhands.lab.calibration.calibration import Calibration


def calibrate(
    job: Job | Callable[..., Job],
    *,
    sizes: Iterable[int] | None = None,
    seconds: float = SECONDS,
    output: str | Path | None = None,
    hosts: str | None = None,
    listen: str | None = None,
    key_file: str | Path | None = None,
) -> Calibration:
    """Measure what a job takes on this machine, by a few real runs of some seconds each.

    The job must be one of a script, as for `mh.train`, because other processes execute it.

    Args:
        job: the job, or a function without arguments that returns it.
        sizes: sizes of batches to measure. Default: a global batch, a half, a quarter, an eighth.
        seconds: how long each run trains.
        output: file to write as JSON. Default: none.
        hosts: measure these hosts and the links between them, too: "a:1, b:1", this one first. The
            others join as they join a run.
        listen: the address at which other hosts reach this one.
        key_file: the key of the run, if all hosts have it already.

    Returns:
        The seconds of batches by their size, and those of exchanges. `missing`, `slowdown` and
        `doubts` say what could not be measured, and how far times may be off.

    Raises:
        ValueError: the job has no script.
        RunFailed: not one batch could be measured, or the run on several hosts failed; what was
            measured on this host is in the file then.

    Example:
        >>> import manyhands as mh
        >>> def measured(job: mh.Job) -> mh.Calibration:
        ...     return mh.calibrate(job, seconds=2.0, output="calibration.json")
    """
    about = (scripts.made(job), job, sys._getframe(1))
    where = places(hosts, listen, None if key_file is None else Path(key_file))
    try:
        calibration = measure_here(*about, sizes=sizes, seconds=seconds, where=where)
    except HostsFailed as error:
        if output is not None:
            error.measured.write(output)
        raise
    if output is not None:
        calibration.write(output)
    return calibration


def measure_here(
    job: Job,
    source: Job | Callable[..., Job],
    frame: FrameType,
    *,
    sizes: Iterable[int] | None = None,
    seconds: float = SECONDS,
    tell: Callable[[str], None] = lambda _: None,
    where: Sequence[str] = (),
) -> Calibration:
    """As `measure` and `measure_hosts`, for a job that is used in a frame of its script."""
    found = script_of(job, source, frame, required=True)
    if found is None:
        raise ValueError("the job has no script that other processes could execute")
    with tempfile.TemporaryDirectory(prefix="manyhands-calibrate-") as place:
        script = found.inside(Path(place))
        script.write()
        words = (str(script.path), *script.arguments)
        made = measure(job, words, script.job, sizes=sizes, seconds=seconds, tell=tell)
        if not where:
            return made
        return measure_hosts(made, job, words, script.job, where, seconds=seconds)
