"""What must be the same under several strategies, on the virtual cluster, in float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from classification import EPOCHS, OPTIMIZERS, SAMPLES, SEED, UNEVEN, a_job, a_model
from virtual_jobs import a_job as a_regression

from manyhands.cluster import Link
from manyhands.sampling.permutation import permutation
from manyhands.strategies import strategy
from manyhands.virtual import ProcessHosts, World


def by_hand(kind: str, batch: int = 37) -> dict[str, torch.Tensor]:
    """One worker with the whole batch, in plain PyTorch."""
    inputs, targets = a_job(kind).data.tensors  # type: ignore[attr-defined]
    torch.manual_seed(SEED)
    model = a_model()
    optimizer = OPTIMIZERS[kind](model)
    rate = optimizer.param_groups[0]["lr"]
    for epoch in range(EPOCHS):
        order = permutation(SAMPLES, SEED, epoch)
        for start in range(0, SAMPLES, batch):
            chosen = order[start : start + batch]
            optimizer.zero_grad()
            F.cross_entropy(model(inputs[chosen]), targets[chosen]).backward()
            optimizer.param_groups[0]["lr"] = rate * len(chosen) / batch
            optimizer.step()
    return dict(model.state_dict())


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return max((one[name] - other[name]).abs().max().item() for name in other)


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize(
    "text", ["synchronous", "synchronous(servers=3)", "softsync", "central_storage"]
)
def test_n_workers_in_lockstep_are_one_with_the_whole_batch(virtually, text, workers, kind):
    # 151 = 4 · 37 + 3: in the last batch of an epoch the fourth worker has nothing.
    recipe = f"softsync(wait_for={workers})" if text == "softsync" else text
    done = virtually(a_job(kind), strategy(recipe), workers=workers, seconds=UNEVEN)
    assert distance(done.run.state_dict(), by_hand(kind)) <= 1e-9
    assert done.run.samples == EPOCHS * SAMPLES


@pytest.mark.parametrize("validates", [True, False])
@pytest.mark.parametrize("text", ["averaging(1)", "ssp(0)", "ssp(staleness=0, servers=2)"])
def test_with_plain_sgd_these_are_synchronous_too(virtually, text, validates):
    job = a_job("plain", validates=validates)
    done = virtually(job, strategy(text), workers=4, seconds=UNEVEN)
    assert distance(done.run.state_dict(), by_hand("plain")) <= 1e-9


@pytest.mark.parametrize("text", ["averaging(1)", "ssp(0)"])
def test_with_momentum_they_are_not(virtually, text):
    done = virtually(a_job("momentum"), strategy(text), workers=4, seconds=UNEVEN)
    assert distance(done.run.state_dict(), by_hand("momentum")) > 1e-4


def test_with_momentum_they_are_if_all_parts_are_of_one_size(virtually):
    # Momentum is linear.
    job = replace(a_job("momentum", batch=36), epochs=None, samples=4 * 36)
    mean = virtually(job, strategy("averaging(1)"), workers=4, seconds=UNEVEN)
    step = virtually(job, strategy("synchronous"), workers=4, seconds=UNEVEN)
    assert distance(mean.run.state_dict(), step.run.state_dict()) <= 1e-9


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_an_outer_step_of_one_without_momentum_is_averaging(virtually, kind):
    recipe = strategy("diloco(every=1, outer_lr=1.0, outer_momentum=0.0)")
    outer = virtually(a_job(kind), recipe, workers=4, seconds=UNEVEN)
    mean = virtually(a_job(kind), strategy("averaging(1)"), workers=4, seconds=UNEVEN)
    assert distance(outer.run.state_dict(), mean.run.state_dict()) <= 1e-9


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_quorum_of_all_workers_is_all_workers(virtually, kind):
    one = virtually(a_job(kind), strategy("diloco(every=5)"), workers=4, seconds=UNEVEN)
    recipe = strategy("diloco(every=5, wait_for=4)")
    other = virtually(a_job(kind), recipe, workers=4, seconds=UNEVEN)
    assert distance(one.run.state_dict(), other.run.state_dict()) <= 1e-9


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_fragments_that_are_synchronised_in_every_step_are_one(virtually, kind):
    """With an interval of as many steps as fragments, and one worker, the outer step is exact."""
    recipe = strategy("diloco(every=3, fragments=3, outer_lr=1.0, outer_momentum=0.0)")
    done = virtually(a_job(kind), recipe, workers=1, seconds=UNEVEN)
    assert distance(done.run.state_dict(), by_hand(kind)) <= 1e-9


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_local_sgd_in_its_warmup_is_averaging_after_every_step(virtually, kind):
    warm = strategy("local_sgd(every=9, warmup=1000)")
    one = virtually(a_job(kind), warm, workers=3, seconds=UNEVEN)
    other = virtually(a_job(kind), strategy("averaging(1)"), workers=3, seconds=UNEVEN)
    assert distance(one.run.state_dict(), other.run.state_dict()) == 0


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_soft_synchronisation_with_one_is_asynchronous(virtually, kind):
    # The batch divides the samples: an empty part would be a push more.
    job = a_job(kind, batch=SAMPLES)
    soft = virtually(job, strategy("softsync(1)"), workers=4, seconds=UNEVEN)
    free = virtually(job, strategy("asynchronous"), workers=4, seconds=UNEVEN)
    assert distance(soft.run.state_dict(), free.run.state_dict()) <= 1e-9


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize(
    "text",
    [
        "asynchronous",
        "asynchronous(damping=inverse)",
        "asynchronous(delay_compensation=0.5)",
        "hogwild",
        "ssp(3)",
        "softsync(1)",
        "averaging(4)",
        "local_sgd(every=3)",
        "diloco(every=5, outer_lr=1.0, outer_momentum=0.0)",
        "gossip",
        "gossip(order=asynchronous)",
        "push_sum",
        "broadcast",
        "hierarchical(outer=averaging(every=2))",
        "hierarchical(outer=synchronous())",
        "ensemble",
    ],
)
def test_one_worker_is_single(virtually, text, kind):
    done = virtually(a_job(kind), strategy(text), workers=1, seconds=UNEVEN)
    assert distance(done.run.state_dict(), by_hand(kind)) <= 1e-9


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_one_worker_that_broadcasts_is_single_bit_for_bit(virtually, kind):
    job = a_job(kind)
    done = virtually(job, strategy("broadcast"), workers=1, seconds=UNEVEN)
    apart = virtually(job, strategy("ensemble"), workers=1, seconds=UNEVEN)
    assert distance(done.run.state_dict(), apart.run.state_dict()) == 0


@pytest.mark.parametrize("order", ["parallel", "asynchronous", "round_robin"])
def test_elastic_averaging_ends_and_its_centre_learns(virtually, order):
    recipe = strategy(f"easgd(order={order})")
    done = virtually(a_job("momentum"), recipe, workers=4, seconds=UNEVEN)
    assert done.run.samples == EPOCHS * SAMPLES
    assert done.run.metrics["loss"] < 1.2


ANY = [
    "synchronous(servers=2)",
    "softsync(wait_for=2)",
    "softsync(wait_for=3, late=drop)",
    "ssp(staleness=1)",
    "asynchronous(damping=root)",
    "averaging(every=3)",
    "local_sgd(every=4, warmup=2)",
    "diloco(every=4)",
    "diloco(every=4, fragments=2, overlap=1)",
    "diloco(every=4, fragments=2, wait_for=2)",
    "easgd",
    "easgd(order=asynchronous, every=2)",
    "easgd(order=round_robin)",
    "gossip(graph=ring)",
    "gossip(graph=exponential)",
    "gossip(graph=random_pairs)",
    "gossip(graph=ring, order=asynchronous)",
    "gossip(graph=random_pairs, order=asynchronous)",
    "push_sum(graph=ring)",
    "push_sum(graph=exponential)",
    "broadcast",
    "broadcast(codec=none)",
    "hierarchical(outer=averaging(every=3))",
    "hierarchical(outer=synchronous())",
    "ensemble",
]


@pytest.mark.parametrize("validates", [True, False])
@pytest.mark.parametrize("workers", [3, 5])
@pytest.mark.parametrize("text", ANY)
def test_every_strategy_sees_every_sample_and_learns(virtually, text, workers, validates):
    job = a_job("plain", validates=validates)
    done = virtually(job, strategy(text), workers=workers, seconds=UNEVEN)
    accounted = done.run.trace
    assert done.run.samples + done.world.coordinator.leases.lost == EPOCHS * SAMPLES
    assert accounted is not None
    if validates and "diloco" not in text:
        assert done.run.metrics["loss"] < 1.2


CRASHES = "[crash(worker=1, at=0.33), crash(worker=2, at=0.5, restart=6.0)]"


@pytest.mark.parametrize("validates", [True, False])
@pytest.mark.parametrize("text", ANY)
def test_every_strategy_survives_a_worker_that_dies_and_one_that_returns(
    virtually, text, validates
):
    job = a_job("plain", validates=validates)
    recipe = strategy(text)
    done = virtually(job, recipe, workers=4, seconds=UNEVEN, faults=CRASHES, detection=0.7)
    leases = done.world.coordinator.leases
    assert leases.committed + leases.lost == EPOCHS * SAMPLES


@pytest.mark.parametrize(("graph", "beside"), [("ring", (1, 3)), ("exponential", (1, 2, 3))])
def test_lockstep_gossip_is_decentralised_sgd_as_it_was_published(virtually, graph, beside):
    # x_i(t+1) = Σ_j W_ij·x_j(t) − λ·∇f_i(x_i(t)), and the model is the mean of all.
    job = replace(a_job("plain", batch=36), epochs=None, samples=4 * 36)
    inputs, targets = job.data.tensors  # type: ignore[attr-defined]
    torch.manual_seed(SEED)
    model = a_model()
    x = [torch.nn.utils.parameters_to_vector(model.parameters()).detach()] * 4
    order = permutation(SAMPLES, SEED, 0)
    for start in range(0, 4 * 36, 36):
        steps = []
        for rank in range(4):
            torch.nn.utils.vector_to_parameters(x[rank], model.parameters())
            chosen = order[start + 9 * rank : start + 9 * rank + 9]
            model.zero_grad()
            F.cross_entropy(model(inputs[chosen]), targets[chosen]).backward()
            steps.append(torch.cat([one.grad.reshape(-1) for one in model.parameters()]))
        x = [
            sum((x[(rank + way) % 4] for way in beside), x[rank]) / (1 + len(beside)) - 0.1 * step
            for rank, step in enumerate(steps)
        ]
    done = virtually(job, strategy(f"gossip(graph={graph})"), workers=4, seconds=UNEVEN)
    state = done.run.state_dict()
    found = torch.cat([state[name].reshape(-1) for name, _ in model.named_parameters()])
    assert (found - torch.stack(x).mean(0)).abs().max() <= 1e-12


def test_lockstep_gossip_exchanges_while_it_computes(virtually):
    # There and back takes as long as a batch, and so do both at once.
    job = replace(a_job("plain", batch=36, validates=False), epochs=None, samples=4 * 36)
    places = ProcessHosts.host_each(4, 0, Link(1e12, 0.049))
    done = virtually(job, strategy("gossip"), workers=4, places=places, seconds="constant(0.1)")
    assert done.run.seconds < 4 * 0.1 + 0.05


@pytest.mark.parametrize("order", ["lockstep", "asynchronous"])
@pytest.mark.parametrize("graph", ["ring", "exponential", "random_pairs"])
@pytest.mark.parametrize("workers", [2, 3, 6])
def test_gossip_keeps_the_mean(virtually, order, graph, workers):
    # Without gradients, mixing is all that happens to the replicas.
    job = replace(a_job("plain"), optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.0))
    recipe = strategy(f"gossip(graph={graph}, order={order})")
    spread: list[torch.Tensor] = []
    original = World.begin

    def begin(world: World) -> None:
        for number, server in enumerate(world._servers.values()):
            with torch.no_grad():
                server.holder.bytes.view(torch.float64).add_(float(number))
        spread.append(_mean(world))
        original(world)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(World, "begin", begin)
        done = virtually(job, recipe, workers=workers, seconds=UNEVEN)
    assert (_mean(done.world) - spread[0]).abs().max() < 1e-12
    values = [server.holder.bytes.view(torch.float64) for server in done.world._servers.values()]
    assert max((value - values[0]).abs().max() for value in values) < 0.5


@pytest.mark.parametrize("codec", ["none", "int8()", "bfloat16()"])
@pytest.mark.parametrize("graph", ["ring", "exponential"])
@pytest.mark.parametrize("workers", [2, 3, 6])
def test_push_sum_keeps_all_that_there_is_and_tends_to_the_mean(virtually, graph, workers, codec):
    job = replace(a_job("plain"), optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.0))
    first: list[torch.Tensor] = []
    original = World.begin

    def begin(world: World) -> None:
        for number, server in enumerate(world._servers.values()):
            with torch.no_grad():
                server.holder.bytes.view(torch.float64).add_(float(number))
        first.append(_mean(world))
        original(world)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(World, "begin", begin)
        recipe = strategy(f"push_sum(graph={graph}, codec={codec})")
        done = virtually(job, recipe, workers=workers, seconds=UNEVEN)
    servers = list(done.world._servers.values())
    masses = [server.state.mass for server in servers]
    assert sum(masses) == pytest.approx(workers, abs=1e-12)
    assert len({round(mass, 6) for mass in masses}) > 1, "they do not weigh the same"
    kept = _mean(done.world) + _unsent(done.world) / workers
    assert (kept - first[0]).abs().max() < 1e-12
    for server, mass in zip(servers, masses, strict=True):
        here = server.holder.bytes.view(torch.float64) / mass
        assert (here - first[0]).abs().max() < 0.6


def _mean(world: World) -> torch.Tensor:
    replicas = [server.holder.bytes.view(torch.float64) for server in world._servers.values()]
    return torch.stack(replicas).mean(0)


def _unsent(world: World) -> torch.Tensor:
    """What codecs have not sent, of all workers."""
    parts = [
        part
        for worker in world._workers
        if worker.coded is not None
        for part in worker.coded.unsent().values()
    ]
    return sum(parts, torch.zeros(()))


@pytest.mark.parametrize("islands", [1, 2, 3, 4])
def test_islands_that_meet_after_every_step_are_synchronous_with_plain_sgd(virtually, islands):
    recipe = strategy(f"hierarchical(synchronous(), averaging(every=1), islands={islands})")
    done = virtually(a_job("plain"), recipe, workers=4, seconds=UNEVEN)
    assert distance(done.run.state_dict(), by_hand("plain")) <= 1e-9


@pytest.mark.parametrize("kind", [*OPTIMIZERS, "adam"])
@pytest.mark.parametrize(("islands", "workers"), [(2, 4), (3, 5), (5, 5), (1, 3)])
def test_islands_that_sum_gradients_are_synchronous_under_any_optimizer(
    virtually, monkeypatch, islands, workers, kind
):
    def adam(model):
        return torch.optim.Adam(model.parameters(), lr=0.01, betas=(0.8, 0.9))

    monkeypatch.setitem(OPTIMIZERS, "adam", adam)
    # 151 = 4 · 37 + 3: in the last batch of an epoch whole islands have nothing.
    recipe = strategy(f"hierarchical(outer=synchronous(), islands={islands})")
    done = virtually(a_job(kind), recipe, workers=workers, seconds=UNEVEN)
    flat = virtually(a_job(kind), strategy("synchronous"), workers=workers, seconds=UNEVEN)
    assert distance(done.run.state_dict(), by_hand(kind)) <= 1e-9
    assert distance(done.run.state_dict(), flat.run.state_dict()) <= 1e-9
    assert done.run.samples == EPOCHS * SAMPLES
    assert done.world._servers[f"server-{islands}"].state.version == EPOCHS * 5


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize(
    "outer", ["averaging(every=3)", "diloco(every=2)", "local_sgd(3, warmup=2)"]
)
def test_islands_of_one_worker_each_are_the_outer_strategy(virtually, outer, kind):
    # 37 · 4 + 3 samples: parts are uneven, some are empty, and an epoch ends between meetings.
    hierarchy = strategy(f"hierarchical(synchronous(), {outer}, islands=4)")
    one = virtually(a_job(kind), hierarchy, workers=4, seconds=UNEVEN)
    other = virtually(a_job(kind), strategy(outer), workers=4, seconds=UNEVEN)
    assert distance(one.run.state_dict(), other.run.state_dict()) <= 1e-9
    assert one.run.samples == EPOCHS * SAMPLES


@pytest.mark.parametrize("graph", ["ring", "exponential"])
def test_push_sum_stays_finite_beside_a_worker_that_hardly_ever_answers(virtually, graph):
    # In float32 the fast worker's mass would be 0 after some 150 halvings, and its z NaN.
    done = virtually(
        a_regression(size=600, global_batch=2, epochs=1),
        strategy(f"push_sum(graph={graph})"),
        workers=2,
        seconds="constant(0.01, slow=[slow(1, 1000.0)])",
    )
    masses = [server.state.mass for server in done.world._servers.values()]
    assert sum(masses) == pytest.approx(2, abs=1e-12)
    assert min(masses) >= 1 / 64
    assert all(value.isfinite().all() for value in done.run.state_dict().values())
