"""Every protocol, in the variants that are simulated, and the laws that each must keep.

To add one: a `Variant` in the list, with what draws its parameters, and its laws: a model of its
server in NumPy (`simulated_servers`) if it has one, and what its workers do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from simulated_broadcast import Broadcasts
from simulated_gossip import Meetings, Mixed
from simulated_islands import Between, Islands
from simulated_memory import Central, CentralModel, Common
from simulated_peers import Apart
from simulated_push_sum import Halves
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
    StreamModel,
    SynchronousModel,
)
from simulated_streaming import Streams
from simulated_sums import Sums, United
from simulated_workers import Alone, Elastic, Gradients

from manyhands.codecs import (
    BFloat16,
    ChunkedTopK,
    Exact,
    Half,
    Int4,
    Int8,
    OneBit,
    Qsgd,
    RandomK,
    Ternary,
    Threshold,
    TopK,
)
from manyhands.protocols import (
    Asynchronous,
    Averaging,
    Broadcast,
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
from manyhands.protocols.compression.coding import for_differences
from manyhands.testing import (
    Acknowledged,
    BrokenLawError,
    CallsOnce,
    ExactStaleness,
    Fresh,
    SamplesOnce,
    reference,
)
from manyhands.testing.cases.drawing import draw
from manyhands.testing.cases.random_faults import with_more_faults
from manyhands.testing.laws.coding import NothingLost
from manyhands.testing.observation import run
from manyhands.virtual.conditions.compute_times import Slow

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from manyhands.protocols import StrategyProtocol
    from manyhands.testing import Case, Law
    from manyhands.testing.cases.drawing import Draw
    from manyhands.virtual import World


class NoneLost(SamplesOnce):
    """As `SamplesOnce`; and samples are lost only where late updates are dropped."""

    def ended(self, world: World) -> None:
        super().ended(world)
        lost = world.coordinator.leases.lost
        if lost and getattr(self.case.protocol, "late", "queue") != "drop":
            raise BrokenLawError(f"{lost} samples are lost")


EVERYBODY: tuple[type[Law], ...] = (CallsOnce, NoneLost)
PUSHING = (ExactStaleness, Acknowledged, Gradients)
LOCAL = (ExactStaleness, Acknowledged, Fresh, Alone)


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
        return with_more_faults(self.plain(seed), seed)

    def plain(self, seed: int) -> Case:
        """The same, with crashes, pauses and cuts only."""
        return self.strain(draw(self.protocol, seed))

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


def _streaming(rng: random.Random, _: int, servers: int) -> DiLoCo:
    every = rng.randint(2, 4)
    fragments = rng.randint(1, every)
    overlap = rng.randrange(fragments == 1, every)
    servers = servers if fragments == 1 else 1
    return DiLoCo(every=every, servers=servers, fragments=fragments, overlap=overlap)


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


def _uneven(case: Case) -> Case:
    """One worker is three times slower, in global batches that are large and many enough."""
    times = replace(case.conditions.times, slow=(Slow(case.seed % case.workers, 3.0),))
    batch = 4 * case.workers
    epochs = 16 / -(-len(case.targets) // batch)
    job = replace(case.job, global_batch=batch, epochs=epochs, seconds=None)
    conditions = replace(case.conditions, times=times)
    return replace(case, job=job, conditions=conditions, deadline=4 * case.deadline)


VARIANTS = (
    Variant(
        "synchronous",
        lambda _, __, servers: Synchronous(servers=servers),
        (reference(SynchronousModel), *PUSHING, Fresh),
    ),
    Variant(
        "synchronous_shares",
        lambda _, __, servers: Synchronous(servers=servers, shares="by_speed"),
        (reference(SynchronousModel), *PUSHING, Fresh),
        _uneven,
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
        "averaging_shares",
        lambda rng, _, servers: Averaging(
            every=rng.choice((1, 2, 3)), servers=servers, shares="by_speed"
        ),
        (reference(AveragingModel), *LOCAL),
        _uneven,
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
    Variant(
        "diloco_streaming",
        _streaming,
        (reference(StreamModel), Acknowledged, Fresh, Streams),
    ),
    Variant(
        "diloco_quorum",
        lambda rng, workers, _: replace(
            _streaming(rng, workers, 1), wait_for=rng.randint(1, workers)
        ),
        (reference(StreamModel), Acknowledged, Streams),
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
        "broadcast",
        lambda rng, *_: Broadcast(
            rng.choice((None, TopK(0.4), Threshold(density=0.5), Threshold(tau=0.5), Half()))
        ),
        (Broadcasts, NothingLost),
    ),
    Variant(
        "push_sum_straggler",
        lambda rng, *_: PushSum(graph=rng.choice(("ring", "exponential"))),
        (Halves,),
        _hold_back_one,
    ),
)


def _under_codecs(variant: Variant) -> Variant:
    """A variant whose pushes and answers are encoded.

    A server decodes what the laws of servers and workers are about, so these hold as before;
    except where one worker's vector is passed on by another, which has it in a decoded form.
    """

    def draw(rng: random.Random, workers: int, servers: int) -> StrategyProtocol:
        protocol = variant.protocol(rng, workers, servers)
        if isinstance(protocol, Hierarchical):
            levels = {"inner": protocol.inner, "outer": protocol.outer}
            return replace(protocol, **{name: coded(rng, one) for name, one in levels.items()})
        return coded(rng, protocol)

    def coded(rng: random.Random, protocol: StrategyProtocol) -> StrategyProtocol:
        if isinstance(protocol, PushSum):
            return replace(protocol, codec=rng.choice(BOUNDED_CODECS))
        codec = rng.choice(SMALL_CODECS)
        if isinstance(protocol, (ElasticAveraging, Gossip)):
            codec = for_differences(codec)
        answers = rng.choice(("same", "same", None, Exact()))
        if isinstance(protocol, Gossip) and protocol.lockstep:
            answers = "same"  # neighbours send each other pushes only
        return replace(protocol, codec=codec, answer_codec=answers)

    passed_on = (Mixed, Meetings, Islands, Between, Sums, United, Halves)
    laws = tuple(law for law in variant.laws if law not in passed_on)
    return Variant(f"{variant.name}_coded", draw, (*laws, NothingLost), variant.strain)


SMALL_CODECS = (
    TopK(0.4),
    TopK(0.4, feedback=False),
    RandomK(0.5, feedback=True),
    OneBit(),
    Ternary(),
    Int8(),
    Int4(feedback=True),
    Qsgd(levels=3),
    ChunkedTopK(chunk=2, fraction=0.5, bits=2),
    BFloat16(),
)
BOUNDED_CODECS = (BFloat16(), Half(), Int8(), Int4(), Exact())
CODED = (
    "synchronous",
    "softsync",
    "softsync_drop",
    "ssp",
    "asynchronous",
    "averaging",
    "local_sgd",
    "diloco",
    "easgd_parallel",
    "easgd_asynchronous",
    "easgd_round_robin",
    "gossip_lockstep",
    "gossip_asynchronous",
    "hierarchical",
    "hierarchical_sums",
    "push_sum",
)
VARIANTS = (*VARIANTS, *(_under_codecs(one) for one in VARIANTS if one.name in CODED))
BY_NAME = {variant.name: variant for variant in VARIANTS}
