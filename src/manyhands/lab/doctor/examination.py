"""Examination of a machine: all checks, by theme."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from manyhands.cluster import Cluster
from manyhands.lab.doctor import (
    calibrated_hosts,
    clocks,
    limits,
    memory,
    network,
    processor,
    software,
    storage,
)
from manyhands.lab.doctor.finding import ExaminedRun, Finding, Surroundings
from manyhands.live.hosts.host_list import Hosts
from manyhands.strategies import strategy as read_strategy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from manyhands.lab.doctor.finding import Check
    from manyhands.strategies import Strategy

THEMES: Final[Mapping[str, tuple[Check, ...]]] = {
    "run": (software.check_job,),
    "memory": (
        memory.check_memory,
        memory.check_swap,
        memory.check_overcommit,
        memory.check_shared,
    ),
    "limits": (
        limits.check_open_files,
        limits.check_processes,
        limits.check_file_size,
        limits.check_address_space,
    ),
    "files": (
        storage.check_run_folder,
        storage.check_file_system,
        storage.check_temporary,
        storage.check_data,
        storage.check_key_file,
    ),
    "processor": (processor.check_threads, processor.check_cores, processor.check_steal),
    "network": (network.check_loopback, network.check_ports, network.check_listening),
    "hosts": (calibrated_hosts.check_calibration,),
    "clocks": (clocks.check_date, clocks.check_rate, clocks.check_skew),
    "software": (software.check_versions, software.check_forking),
}
"""The checks, by theme, in the order in which they are shown."""


@dataclass(frozen=True)
class Examination:
    """What all checks found."""

    plan: str
    """The run that the machine was examined for."""
    findings: Mapping[str, Sequence[Finding]]
    """By theme."""

    @property
    def all(self) -> list[Finding]:
        """The findings of all themes."""
        return [finding for findings in self.findings.values() for finding in findings]

    @property
    def errors(self) -> list[Finding]:
        """What makes the run fail."""
        return [finding for finding in self.all if finding.severity == "error"]

    @property
    def warnings(self) -> list[Finding]:
        """What makes the run slow or fragile."""
        return [finding for finding in self.all if finding.severity == "warning"]


def examine(
    script: Path | None = None,
    arguments: Sequence[str] = (),
    *,
    around: Surroundings | None = None,
    job: str | None = None,
    strategy: str | None = None,
    workers: int | None = None,
    hosts: str | None = None,
    **places: Any,
) -> Examination:
    """Examine this machine for a run.

    Args:
        script: the user's script; without one only the machine is examined.
        arguments: arguments for the script.
        around: where checks read the machine.
        job: name of the script's job, if it has several.
        strategy: the strategy; by default that of `train`.
        workers: number of workers; by default that of `train`.
        hosts: hosts and their workers, this one first, as in `a:4, b:4`.
        places: `listen`, `key_file` and `output` of the run, and a `calibration` of its hosts.
    """
    found: list[Finding] = []
    loaded = None
    if script is not None:
        loaded, found = software.load_script(script, arguments, job)
    named, count = _named(hosts, workers, found)
    chosen = _chosen(strategy, count, found)
    plan = ExaminedRun(chosen, count, loaded, named, **places)
    around = around or Surroundings()
    findings = {
        theme: [finding for check in checks for finding in _tried(check, plan, around)]
        for theme, checks in THEMES.items()
    }
    findings["run"] = found + findings["run"]
    return Examination(plan.words, findings)


def _tried(check: Check, plan: ExaminedRun, around: Surroundings) -> Iterator[Finding]:
    """What a check finds; that it cannot be made, if so."""
    try:
        yield from check(plan, around)
    except Exception as error:  # noqa: BLE001 - one check must not hide the others
        name = check.__name__.removeprefix("check_").replace("_", " ")
        words = f"could not be checked ({type(error).__name__}: {error})"
        yield Finding(name, "warning", words, "report it, with the system's name and version")


def _named(
    hosts: str | None, workers: int | None, found: list[Finding]
) -> tuple[Hosts | None, int]:
    default = workers or Cluster.local().default_workers()
    if hosts is None:
        return None, default
    try:
        named = Hosts.read(hosts)
        named.check_count(workers)
    except ValueError as error:
        found.append(Finding("hosts", "error", str(error), "correct --hosts"))
        return None, default
    return named, named.workers


def _chosen(text: str | None, workers: int, found: list[Finding]) -> Strategy:
    default = "single()" if workers == 1 else "allreduce()"
    try:
        return read_strategy(text or default)
    except ValueError as error:
        found.append(Finding("strategy", "error", str(error), "see manyhands strategies"))
        return read_strategy(default)
