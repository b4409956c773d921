"""The strategies that a plan considers, and why others are left out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from manyhands.live.agent.memory_check import check_hosts, workers_that_fit
from manyhands.strategies import placement_of, virtual_form
from manyhands.strategies import strategy as read_strategy
from manyhands.units import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from manyhands.cluster import Cluster
    from manyhands.job import Job
    from manyhands.pacing import Pace
    from manyhands.strategies import Strategy

EVERYWHERE: Final = (
    "allreduce()",
    "synchronous()",
    "synchronous(servers={servers})",
    "softsync(wait_for={most})",
    "ssp(staleness=4, servers={servers})",
    "asynchronous(servers={servers})",
    "synchronous(servers={servers}, codec=int8())",
    "asynchronous(servers={servers}, codec=topk(0.01))",
    "local_sgd(every=8)",
    "local_sgd(every=8, servers={servers})",
    "averaging(every=8)",
    "averaging(every=8, servers={servers})",
    "diloco(every=32)",
    "diloco(every=32, servers={servers})",
    "easgd(every=8)",
    "easgd(every=8, servers={servers})",
    "gossip()",
    "zero(stage=1)",
    "zero(stage=2)",
    "fully_sharded()",
    "tensor()",
    "pipeline(microbatches={twice})",
)
"""Strategies with the options that depend on the number of workers."""
OF_UNEQUAL: Final = (
    "allreduce(shares=by_speed)",
    "synchronous(servers={servers}, shares=by_speed)",
    "averaging(every=8, servers={servers}, shares=by_speed)",
)
"""Those for workers of which some are slower."""
ON_SITES: Final = (
    "hierarchical()",
    "hierarchical(outer=diloco(every=32))",
    "hybrid(data={islands}, shard={each}, outer=diloco(every=32))",
    "hybrid(data={islands}, shard={each}, outer=diloco(every=32, codec=int4()))",
)
"""Those for clusters with several hosts or sites: islands with as many workers each."""
DIVIDES_WORK: Final = frozenset(("tensor", "pipeline", "context", "place", "offload"))
"""Placements whose workers compute a part of the model for the whole batch."""


@dataclass(frozen=True)
class Candidate:
    """A strategy with a number of workers."""

    strategy: Strategy
    workers: int
    hosts: tuple[tuple[str, int], ...] = ()
    """The workers of each host, where the first hosts of the cluster have no room for them."""

    def on(self, cluster: Cluster) -> Cluster:
        """The hosts of a cluster that it runs on."""
        return hosts_of(cluster, self.workers, self.hosts)

    def __str__(self) -> str:
        return str(self.strategy)

    @property
    def interval(self) -> int:
        """Steps between two synchronisations; 1 if it synchronises in every step."""
        outer = getattr(self.strategy, "outer", self.strategy)
        found = max(getattr(one, "every", 1) for one in (self.strategy, outer))
        return found if isinstance(found, int) else 1

    @property
    def deals_by_speed(self) -> bool:
        """Whether workers that compute faster have more samples of a batch."""
        return getattr(self.strategy, "shares", "") == "by_speed"

    @property
    def divides_work(self) -> bool:
        """Whether a worker computes a part of the model, for all samples of a batch."""
        return self.strategy.name in DIVIDES_WORK


@dataclass(frozen=True)
class LeftOut:
    """A strategy that cannot run here, and why.

    Example:
        >>> import manyhands as mh
        >>> mh.LeftOut("gossip() on 2 workers", "it needs 3 workers").why
        'it needs 3 workers'
    """

    strategy: str
    why: str


def hosts_of(cluster: Cluster, workers: int, hosts: Sequence[tuple[str, int]]) -> Cluster:
    """The hosts of a cluster for so many workers: those that are named, or else the first ones.

    Args:
        cluster: where.
        workers: number of workers.
        hosts: the workers of each host.
    """
    return cluster.with_workers(dict(hosts)) if hosts else cluster.first(workers)


def paces_on(
    cluster: Cluster, hosts: Sequence[tuple[str, int]], slow: Sequence[Pace]
) -> tuple[Pace, ...]:
    """The slow workers of the cluster by their ranks on some of its hosts.

    Args:
        cluster: where; slow workers are counted over all of its hosts.
        hosts: the workers of each host; none for the first hosts, where the ranks are the same.
        slow: workers that are slower than the others.
    """
    if not hosts:
        return tuple(slow)
    among, taken = dict(hosts), Counter[str]()
    ranks: dict[int, int] = {}
    for rank, name in enumerate(cluster.worker_hosts(cluster.default_workers())):
        if taken[name] < among.get(name, 0):
            ranks[rank] = len(ranks)
        taken[name] += 1
    return tuple(
        pace if pace.worker is None else replace(pace, worker=ranks[pace.worker])
        for pace in slow
        if pace.worker is None or pace.worker in ranks
    )


def numbers_of_workers(cluster: Cluster) -> list[int]:
    """All workers, half of them and a quarter; one worker is `single()`."""
    most = cluster.default_workers()
    return sorted({most, most // 2, most // 4} - {0, 1}, reverse=True)


def candidates(
    job: Job,
    cluster: Cluster,
    workers: Sequence[int],
    texts: Sequence[str] | None = None,
    *,
    unequal: bool = False,
) -> Iterator[Candidate | LeftOut]:
    """What is considered, with the reason for everything that cannot run.

    One worker always takes part: it may be better not to distribute.

    Args:
        job: the job.
        cluster: where.
        workers: numbers of workers.
        texts: strategies in place of the usual ones.
        unequal: whether some workers are slower than others.
    """
    alone = Candidate(read_strategy("single()"), 1)
    try:
        check_hosts(alone.strategy, job, 1, cluster)
        yield alone
    except ValueError as error:
        yield LeftOut("single() on 1 worker", str(error))
        fitting = workers_that_fit(alone.strategy, job, _roomiest(cluster))
        if fitting:
            yield replace(alone, hosts=tuple(fitting.items()))
    hosts = [host.name for host in cluster.hosts]
    for count in workers:
        islands = len(cluster.first(count).islands())
        divided = islands > 1 and count % islands == 0 and count > islands
        on_sites = ON_SITES if divided else ON_SITES[:2]
        usual = (*EVERYWHERE, *(OF_UNEQUAL if unequal else ()))
        usual += on_sites if len(hosts) > 1 else ()
        known = {"single()"}
        for text in texts or usual:
            filled = _filled(text, cluster.first(count), count)
            try:
                found = read_strategy(filled)
                if str(found) in known:
                    continue
                known.add(str(found))
                check(found, job, count, hosts)
            except (ValueError, TypeError) as error:
                yield LeftOut(f"{filled} on {counted(count, 'worker')}", str(error))
                continue
            try:
                check_hosts(found, job, count, cluster)
            except ValueError as error:
                yield LeftOut(f"{filled} on {counted(count, 'worker')}", str(error))
                if count == cluster.default_workers():
                    yield from _fitting(text, found, job, cluster, workers)
            else:
                yield Candidate(found, count)


def _filled(text: str, among: Cluster, count: int) -> str:
    """The text of a strategy, with the options that depend on the workers and their hosts."""
    islands = len(among.islands())
    return text.format(
        servers=min(count, len(among.hosts_for_servers)),
        most=count - 1,
        twice=2 * count,
        islands=islands,
        each=count // max(1, islands),
    )


def _fitting(
    text: str, found: Strategy, job: Job, cluster: Cluster, workers: Sequence[int]
) -> Iterator[Candidate]:
    """The strategy with the workers for which the hosts have room, if these are unequal."""
    try:
        counts = workers_that_fit(found, job, cluster)
        among, count = cluster.with_workers(counts), sum(counts.values())
        filled = read_strategy(_filled(text, among, count))
        check(filled, job, count, [host.name for host in among.hosts])
        check_hosts(filled, job, count, among)
    except (ValueError, TypeError):
        return
    is_first = cluster.first(count) == among
    if count > 1 and not (is_first and count in workers):
        yield Candidate(filled, count, () if is_first else tuple(counts.items()))


def _roomiest(cluster: Cluster) -> Cluster:
    """One worker on the host with the most memory."""
    host = max(cluster.hosts_for_workers, key=lambda host: host.memory)
    return cluster.with_workers({host.name: 1})


_SIMPLE: Final = (
    *("single", "allreduce", "synchronous", "local_sgd", "averaging", "softsync", "ssp"),
    *("asynchronous", "diloco", "easgd", "gossip", "zero", "fully_sharded", "tensor", "pipeline"),
)
"""Names of strategies, those that are simpler to understand and to run first."""


def simplicity(text: str, workers: int) -> tuple[int, int, int]:
    """The rank of a strategy among those that are equally fast; the least is the simplest.

    >>> simplicity("averaging(every=8)", 4) < simplicity("averaging(every=8, servers=4)", 4)
    True

    Args:
        text: the strategy.
        workers: number of workers.
    """
    name = text.partition("(")[0]
    place = _SIMPLE.index(name) if name in _SIMPLE else len(_SIMPLE)
    return place, text.count("="), workers


def check(strategy: Strategy, job: Job, workers: int, hosts: Sequence[str]) -> None:
    """Raise ValueError or TypeError, with the reason, if a strategy cannot train the job."""
    strategy.check(workers)
    strategy.check_places(hosts, ["cpu"] * workers)
    placement = placement_of(strategy)
    if placement is not None:
        placement.check_job(job, workers)
        placement.check_virtual(numbers=False)
    form = virtual_form(strategy, numbers=False)
    form.check(workers)
    form.check_job(job, workers)
