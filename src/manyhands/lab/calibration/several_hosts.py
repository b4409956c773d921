"""Measures a job on several hosts: their speeds, the links between them, sums over all of them."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from manyhands.failure import RunFailed
from manyhands.lab.calibration.calibration import (
    CalibratedHost,
    CalibratedLink,
    CalibratedSum,
    Calibration,
)
from manyhands.lab.calibration.timed_run import compute_time, timed, timed_workers
from manyhands.lab.launcher import end
from manyhands.live.hosts.host_list import Hosts
from manyhands.live.worker.lockstep.link_times import COLLECTIVE, HOST, LINK
from manyhands.reports import Run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from manyhands.job import Job
    from manyhands.trace import ProcessTrace

STRATEGY: Final = "allreduce()"
_MOST_STEPS: Final = 400


class HostsFailed(RunFailed):
    """The hosts could not be measured together; what was measured on this one alone is kept."""

    def __init__(self, words: str, measured: Calibration) -> None:
        super().__init__(words)
        self.measured = measured


def measure_hosts(
    calibration: Calibration,
    job: Job,
    script: Sequence[str],
    name: str,
    where: Sequence[str],
    *,
    seconds: float,
) -> Calibration:
    """Measure several hosts by one run on all of them, which the others join.

    Args:
        calibration: what was measured on this host alone.
        job: the job.
        script: its script and the arguments of it.
        name: the job's name in the script.
        where: the options of `manyhands train` that say which hosts there are.
        seconds: how long the run trains after the links were measured.

    Returns:
        The calibration with hosts and links.

    Raises:
        HostsFailed: the run failed; what it said is in the terminal.
    """
    batch = job.batch_sizes.at(0)
    path, *arguments = script
    with tempfile.TemporaryDirectory(prefix="manyhands-calibrate-") as place:
        folder = Path(place) / "run"
        command = [sys.executable, "-m", "manyhands", "train", path, "--job", name, *where]
        command += ["--strategy", STRATEGY, "--output", str(folder), "--timed-links"]
        command += ["--seconds", f"{seconds:g}", "--samples", str(batch * _MOST_STEPS)]
        command += ["--timed-batch", str(batch), "--quiet"]
        command += ["--", *arguments] if arguments else []
        # What it prints tells the user how the other hosts join.
        process = subprocess.Popen(command, start_new_session=True)  # noqa: S603 - our own command
        try:
            code = process.wait()
        finally:
            end(process)
        if code:
            raise HostsFailed("calibration: the run on several hosts failed", calibration)
        try:
            return with_hosts(calibration, Run(folder), batch)
        except RunFailed as error:
            raise HostsFailed(str(error), calibration) from error


def places(hosts: str | None, listen: str | None, key_file: Path | None) -> list[str]:
    """The options of `manyhands train` for several hosts; none if none were named.

    Raises:
        ValueError: there are options for other hosts, and none is named.
    """
    if hosts is not None and ":" in hosts and len(Hosts.read(hosts).names) == 1:
        raise ValueError(f"{hosts!r} is one host: name two or more, as in --hosts 'a:1, b:1'")
    given = {"--hosts": hosts, "--listen": listen, "--key-file": key_file}
    words = [word for name, value in given.items() if value for word in (name, str(value))]
    if words and hosts is None:
        raise ValueError(f"{words[0]} is for several hosts: name them with --hosts")
    return words


def with_hosts(calibration: Calibration, run: Run, batch: int) -> Calibration:
    """A calibration with what a run on several hosts has measured."""
    workers = sorted(run.trace.workers, key=lambda one: one.header.rank)
    by_host = [(name, [*ones]) for name, ones in groupby(workers, lambda one: one.header.host)]
    share = max(1, batch // len(workers))
    hosts = tuple(_host(name, ones, share) for name, ones in by_host)
    links = tuple(_links(workers))
    if len(hosts) < 2 or not links:
        raise RunFailed("calibration: the run had workers on one host only")
    sums = tuple(
        CalibratedSum(nbytes=int(one["bytes"]), seconds=float(one["seconds"]))
        for one in _events(workers, COLLECTIVE)
    )
    return msgspec.structs.replace(
        calibration,
        hosts=hosts,
        links=links,
        sums=sums,
        batch=batch,
        step=timed(run).step,
    )


def _host(name: str, workers: Sequence[ProcessTrace], share: int) -> CalibratedHost:
    about = next(_events(workers, HOST))
    times = [compute_time(share, [one]) for one in timed_workers(workers)]
    return CalibratedHost(
        name=name,
        workers=len(workers),
        cores=int(about["cores"]),
        memory=int(about["memory"]),
        samples=share,
        seconds=statistics.mean(one.whole for one in times),
    )


def _links(workers: Sequence[ProcessTrace]) -> Iterator[CalibratedLink]:
    for one in _events(workers, LINK):
        yield CalibratedLink(
            sender=one["from"],
            receiver=one["to"],
            bandwidth=float(one["bandwidth"]),
            latency=float(one["latency"]),
        )


def _events(workers: Sequence[ProcessTrace], what: str) -> Iterator[dict[str, str]]:
    for worker in workers:
        yield from (event.detail for event in worker.events if event.what == what)
