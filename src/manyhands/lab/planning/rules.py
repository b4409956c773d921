"""Rules of thumb for distributed training, each tried on this job and this calibration.

A rule is confirmed or refuted by predictions that differ in the one thing that it speaks of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

import msgspec
import torch

from manyhands.cluster import Cluster, Link
from manyhands.lab.planning.candidates import Candidate, check
from manyhands.lab.planning.timing import predict
from manyhands.pacing import Pace
from manyhands.placements.forecasts.network_cost import job_network_cost
from manyhands.strategies import strategy as read_strategy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from manyhands.job import Job
    from manyhands.lab.calibration import Calibration

_CLEAR: Final = 1.1
"""How much faster is clearly faster."""
_FEW: Final = 32
_MANY: Final = 128
"""Numbers of workers below and above the 32 to 50 of the rule."""
_UNEQUAL: Final = 8


@dataclass(frozen=True)
class Rule:
    """A rule of thumb, and what predictions for this job say of it.

    Example:
        >>> import manyhands as mh
        >>> mh.Rule("small networks are bad candidates", "confirmed", "2.1 times, 3.9 times").holds
        'confirmed'
    """

    text: str
    holds: Literal["confirmed", "refuted", "not tested"]
    figures: str


class Rules:
    """Tries the rules.

    Args:
        job: the job.
        cluster: where; its slowest link is the network of all predictions.
        calibration: how long a batch takes.
        tell: receives what is predicted at the moment.
    """

    def __init__(
        self,
        job: Job,
        cluster: Cluster,
        calibration: Calibration,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._job = job
        self._calibration = calibration
        self._tell = tell
        self._workers = max(2, cluster.default_workers())
        self._link = slowest(cluster)

    def all(self) -> Iterator[Rule]:
        """Every rule, in the order of the field's textbooks."""
        for rule, text in (
            (self._ratio, "a low ratio of transfer to computing favours distribution"),
            (self._small, "small networks are bad candidates"),
            (self._shared, "networks that share parameters (CNN, RNN) are good candidates"),
            (self._many, "synchronous up to 32-50 workers, asynchronous beyond"),
            (self._unequal, "asynchronous on unequal machines"),
        ):
            self._tell(f"rule: {text}")
            try:
                holds, figures = rule()
            except (ValueError, TypeError) as error:
                yield Rule(text, "not tested", str(error))
            else:
                yield Rule(text, holds, figures)

    def _ratio(self) -> tuple[Literal["confirmed", "refuted"], str]:
        """The same computing with faster and slower links."""
        faster, here, slower = (self._speedup(bandwidth=factor) for factor in (10.0, 1.0, 0.1))
        words = (
            f"{self._workers} workers with allreduce are {here:.1f} times as fast as one; "
            f"{faster:.1f} with ten times the bandwidth, {slower:.1f} with a tenth"
        )
        return _verdict(faster >= here >= slower and faster > _CLEAR * slower), words

    def _small(self) -> tuple[Literal["confirmed", "refuted"], str]:
        """A tenth of the computing and of the bytes: only latency and what a step costs stay."""
        here = self._speedup()
        tenth = self._speedup(bandwidth=10.0, computing=0.1)
        words = (
            f"{self._workers} workers are {here:.1f} times as fast as one; {tenth:.1f} times with "
            "a tenth of the computing and of the bytes"
        )
        return _verdict(here > _CLEAR * tenth), words

    def _shared(self) -> tuple[Literal["confirmed", "refuted", "not tested"], str]:
        """The same bytes, with the computing of a network that uses each parameter once."""
        found = job_network_cost(self._job, 1)
        # A multiplication and an addition for each use.
        uses = found.cost.work / max(1, 2 * found.parameters)
        if uses < _CLEAR:
            return "not tested", f"this one uses each parameter {uses:.1f} times for a sample"
        here, once = self._speedup(), self._speedup(computing=1 / uses)
        words = (
            f"this one uses each parameter {uses:.1f} times for a sample: {here:.1f} times as fast "
            f"as one worker; {once:.1f} times if it used each once"
        )
        return _verdict(here > _CLEAR * once), words

    def _many(self) -> tuple[Literal["confirmed", "refuted"], str]:
        few, many = self._free(_FEW), self._free(_MANY)
        words = (
            f"asynchronous is {few:.2f} times as fast as synchronous on {_FEW} equal workers, "
            f"{many:.2f} times on {_MANY} (with a server for eight workers each, on hosts of their "
            "own)"
        )
        return _verdict(few < _CLEAR <= many), words

    def _unequal(self) -> tuple[Literal["confirmed", "refuted"], str]:
        equal, unequal = self._free(_UNEQUAL), self._free(_UNEQUAL, slow=3.0)
        words = (
            f"of {_UNEQUAL} workers, one of them 3 times slower: {unequal:.2f} times as fast as "
            f"synchronous; {equal:.2f} times if all are equal"
        )
        return _verdict(unequal > _CLEAR * equal), words

    def _speedup(self, *, bandwidth: float = 1.0, computing: float = 1.0) -> float:
        """How many times faster than one worker allreduce is."""
        known = scaled(self._calibration, computing)
        link = replace(self._link, bandwidth=self._link.bandwidth * bandwidth)
        one = self._rate("single()", 1, link, known)
        return self._rate("allreduce()", self._workers, link, known) / one

    def _free(self, workers: int, slow: float = 1.0) -> float:
        """Asynchronous / synchronous, each worker with a batch of the same size."""
        servers = max(1, workers // 8)
        size = max(1, self._job.batch_sizes.at(0) // self._workers)
        job = replace(self._job, global_batch=size * workers)
        paces = [Pace(workers - 1, slow)] if slow > 1 else []
        free, lockstep = (
            self._rate(f"{name}(servers={servers})", workers, self._link, job=job, slow=paces)
            for name in ("asynchronous", "synchronous")
        )
        return free / lockstep

    def _rate(
        self,
        text: str,
        workers: int,
        link: Link,
        calibration: Calibration | None = None,
        *,
        job: Job | None = None,
        slow: list[Pace] | None = None,
    ) -> float:
        job = job or self._job
        known = calibration or self._calibration
        candidate = Candidate(read_strategy(text), workers)
        cluster = Cluster.parse("1 host of 1 worker")
        if workers > 1:
            # Servers have hosts of their own, so that all workers are equal.
            apart = candidate.strategy.needs(workers).server_processes
            where = f", servers on {apart} hosts apart" if apart else ""
            cluster = replace(Cluster.parse(f"{workers} workers, 1gbit{where}"), link=link)
        check(candidate.strategy, job, workers, [host.name for host in cluster.hosts])
        return predict(job, candidate, cluster, known, slow or (), repeats=1, reasons=False).rate


def larger_batch(
    job: Job,
    candidate: Candidate,
    about: tuple[Cluster, Calibration, Sequence[Pace]],
    rate: float,
) -> str:
    """What twice the global batch would change, in a sentence; empty if it is not clearly faster.

    Args:
        job: the job.
        candidate: the strategy and the number of workers.
        about: where, how long a batch takes, and slower workers.
        rate: samples per second with the job's batch.
    """
    batch, workers = job.batch_sizes.at(0), candidate.workers
    if workers == 1 or candidate.divides_work or 2 * batch > job.epoch_samples:
        return ""
    if isinstance(job.global_batch, Mapping):
        # It grows by itself.
        return ""
    twice = replace(job, global_batch=2 * batch)
    try:
        check(candidate.strategy, twice, workers, [host.name for host in about[0].hosts])
        faster = predict(twice, candidate, *about, repeats=1, reasons=False).rate
    except (ValueError, TypeError):
        return ""
    if faster < _CLEAR * rate:
        return ""
    return (
        f"each of the {workers} workers has {batch / workers:,.3g} of the {batch:,} samples of a "
        f"global batch, and twice as many (--global-batch {2 * batch}) are predicted to train at "
        f"{faster:,.0f} samples/s; a rule of thumb is then {_rate_rule(job)}, which says nothing "
        "of the accuracy"
    )


def _rate_rule(job: Job) -> str:
    """How the learning rate follows the batch, by the rule of thumb for the job's optimizer."""
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            optimizer = job.make_optimizer(job.model())
    except Exception:  # noqa: BLE001 - not every model is made without numbers
        return "twice the learning rate for SGD, and 1.4 times for Adam and its like"
    kind = type(optimizer).__name__
    if "sgd" in kind.lower():
        return f"twice the learning rate (linear scaling, for {kind})"
    return f"1.4 times the learning rate (square-root scaling, for {kind})"


def slowest(cluster: Cluster) -> Link:
    """The slowest link between workers of a cluster; 1 Gbit/s and 50 µs if there is none."""
    found = [cluster.link, *(link for _, _, link in cluster.links)]
    found += [link for site in cluster.sites for link in (site.link, site.uplink)]
    links = [link for link in found if link is not None]
    return min(links, key=lambda link: link.bandwidth, default=Link(125e6, 50e-6))


def scaled(calibration: Calibration, factor: float) -> Calibration:
    """The calibration of a job that computes so many times as long."""
    compute = tuple(
        msgspec.structs.replace(one, seconds=one.seconds * factor, data=one.data * factor)
        for one in calibration.compute
    )
    return msgspec.structs.replace(calibration, compute=compute)


def _verdict(holds: bool) -> Literal["confirmed", "refuted"]:
    return "confirmed" if holds else "refuted"
