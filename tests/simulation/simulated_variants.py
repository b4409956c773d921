"""Every protocol, in the variants that are simulated, and the laws that each must keep.

To add one: a `Variant` in the list, with what draws its parameters, and its laws: a model of its
server in NumPy (`simulated_servers`) if it has one, and what its workers do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from simulated_case import draw, trouble
from simulated_gossip import Meetings, Mixed
from simulated_islands import Between, Islands
from simulated_laws import Acknowledged, Calls, Fresh, Samples, Staleness
from simulated_memory import Central, CentralModel, Common
from simulated_peers import Apart
from simulated_push_sum import Halves
from simulated_reference import reference
from simulated_servers import (
    AsynchronousModel,
    AveragingModel,
    CompensatedModel,
    ElasticAloneModel,
    ElasticModel,
    ElasticTurnsModel,
    OuterModel,
    SoftModel,
    StaleModel,
    SynchronousModel,
)
from simulated_sums import Sums, United
from simulated_workers import Alone, Elastic, Gradients
from simulated_world import run

from manyhands.protocols import (
    Asynchronous,
    Averaging,
    CentralStorage,
    DiLoCo,
    ElasticAveraging,
    Ensemble,
    Gossip,
    Hierarchical,
    Hogwild,
    LocalSgd,
    PushSum,
    SoftSync,
    StaleSynchronous,
    Synchronous,
)
from manyhands.virtual.conditions.compute_times import Slow

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from simulated_case import Case, Draw
    from simulated_events import Law

EVERYBODY: tuple[type[Law], ...] = (Calls, Samples)
PUSHING = (Staleness, Acknowledged, Gradients)
LOCAL = (Staleness, Acknowledged, Fresh, Alone)


@dataclass(frozen=True)
class Variant:
    """A protocol with some of its parameters, and its laws."""

    name: str
    protocol: Draw
    """Draws one: from a random source, for so many workers and servers."""
    laws: Sequence[Callable[[Case], Law]]
    strain: Callable[[Case], Case] = lambda case: case
    """What is changed in the cases that seeds stand for."""

    def case(self, seed: int) -> Case:
        """What a seed stands for."""
        return trouble(self.plain(seed), seed)

    def plain(self, seed: int) -> Case:
        """The same, with crashes, pauses and cuts only."""
        return self.strain(draw(self.name, self.protocol, seed))

    def run(self, seed: int) -> str:
        """Simulate a seed; a fingerprint of the run."""
        return self.watch(self.case(seed))

    def watch(self, case: Case) -> str:
        """Simulate a case under the laws; a fingerprint of the run."""
        return run(case, (*EVERYBODY, *self.laws))


def _easgd(order: str) -> Draw:
    def draw(rng: random.Random, _: int, servers: int) -> ElasticAveraging:
        rho = rng.choice((None, 0.5, 2.0))
        every = rng.choice((1, 1, 2, 3))
        given = {"alpha": rng.choice((None, 0.3)) if rho is None else None}
        return ElasticAveraging(rho, order, every, servers, **given, beta=rng.choice((None, 0.7)))

    return draw


def _gossip(order: str) -> Draw:
    return lambda rng, *_: Gossip(
        graph=rng.choice(("ring", "exponential", "random_pairs")), order=order
    )


def _hierarchical(rng: random.Random, workers: int, _: int) -> Hierarchical:
    every = rng.choice((1, 2, 3))
    outer = rng.choice((Averaging(every), LocalSgd(every=every, warmup=1), DiLoCo(every=every)))
    return Hierarchical(outer=outer, islands=rng.randint(1, workers))


def _softsync(rng: random.Random, workers: int, servers: int) -> SoftSync:
    wait_for = rng.randint(1, workers)
    return SoftSync(
        wait_for=wait_for,
        servers=servers if wait_for in (1, workers) else 1,
        damping=rng.choice(("none", "inverse", "root")),
        weigh_as=rng.choice(("samples", "samples", "step")),
    )


def _hold_back_one(case: Case) -> Case:
    """One worker is hundreds of times slower, and the run is long enough for that to show."""
    rank, factor = case.seed % case.workers, (200.0, 1000.0)[case.seed % 2]
    times = replace(case.conditions.times, slow=(Slow(rank, factor),))
    batch = case.workers
    job = replace(case.job, global_batch=batch, epochs=8 * batch / len(case.targets), seconds=None)
    return replace(
        case,
        job=job,
        conditions=replace(case.conditions, times=times),
        deadline=case.deadline * factor,
    )


VARIANTS = (
    Variant(
        "synchronous",
        lambda _, __, servers: Synchronous(servers=servers),
        (reference(SynchronousModel), *PUSHING, Fresh),
    ),
    Variant(
        "softsync",
        _softsync,
        (reference(SoftModel), *PUSHING),
    ),
    Variant(
        "softsync_drop",
        lambda rng, workers, _: SoftSync(wait_for=rng.randint(1, workers), late="drop"),
        (reference(SoftModel), *PUSHING),
    ),
    Variant(
        "ssp",
        lambda rng, _, servers: StaleSynchronous(
            staleness=rng.choice((0, 1, 2, 5)), servers=servers
        ),
        (reference(StaleModel), *PUSHING),
    ),
    Variant(
        "asynchronous",
        lambda rng, _, servers: Asynchronous(
            servers=servers, damping=rng.choice(("none", "inverse", "root"))
        ),
        (reference(AsynchronousModel), *PUSHING),
    ),
    Variant(
        "compensated",
        lambda _, __, servers: Asynchronous(servers=servers, delay_compensation=0.01),
        (reference(CompensatedModel), *PUSHING),
    ),
    Variant(
        "averaging",
        lambda rng, _, servers: Averaging(every=rng.choice((1, 2, 3)), servers=servers),
        (reference(AveragingModel), *LOCAL),
    ),
    Variant(
        "local_sgd",
        lambda rng, _, servers: LocalSgd(
            every=rng.choice((2, 3)), warmup=rng.choice((0, 1, 2)), servers=servers
        ),
        (reference(AveragingModel), *LOCAL),
    ),
    Variant(
        "diloco",
        lambda rng, _, servers: DiLoCo(every=rng.choice((1, 2, 3)), servers=servers),
        (reference(OuterModel), *LOCAL),
    ),
    Variant("easgd_parallel", _easgd("parallel"), (reference(ElasticModel), Elastic)),
    Variant("easgd_asynchronous", _easgd("asynchronous"), (reference(ElasticAloneModel), Elastic)),
    Variant("easgd_round_robin", _easgd("round_robin"), (reference(ElasticTurnsModel), Elastic)),
    Variant(
        "central_storage",
        lambda *_: CentralStorage(),
        (reference(CentralModel), Central, Fresh, Acknowledged),
    ),
    Variant("hogwild", lambda *_: Hogwild(), (Common,)),
    Variant("ensemble", lambda *_: Ensemble(), (Apart,)),
    Variant("gossip_lockstep", _gossip("lockstep"), (Mixed,)),
    Variant("gossip_asynchronous", _gossip("asynchronous"), (Meetings,)),
    Variant("hierarchical", _hierarchical, (Islands, Between)),
    Variant(
        "hierarchical_sums",
        lambda rng, workers, _: Hierarchical(outer=Synchronous(), islands=rng.randint(1, workers)),
        (Sums, United),
    ),
    Variant(
        "push_sum",
        lambda rng, *_: PushSum(graph=rng.choice(("ring", "exponential"))),
        (Halves,),
    ),
    Variant(
        "push_sum_straggler",
        lambda rng, *_: PushSum(graph=rng.choice(("ring", "exponential"))),
        (Halves,),
        _hold_back_one,
    ),
)
BY_NAME = {variant.name: variant for variant in VARIANTS}
