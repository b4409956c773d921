"""A hierarchy whose workers and servers die, on the virtual cluster: it ends, and sees it all."""

from __future__ import annotations

import random

import pytest
from classification import EPOCHS, SAMPLES, UNEVEN, a_job

from manyhands.cluster import Link
from manyhands.strategies import strategy
from manyhands.virtual import ProcessHosts

RECIPES = [
    "hierarchical(synchronous(), averaging(every=2), islands=2)",
    "hierarchical(synchronous(), diloco(every=3), islands=2)",
    "hierarchical(synchronous(), local_sgd(every=2, warmup=2), islands=3)",
    "hierarchical(synchronous(), synchronous(), islands=2)",
    "hierarchical(synchronous(), synchronous(), islands=3)",
]


def some_faults(seed: int, servers: int) -> str:
    """Up to four crashes of workers, of which one at least stays, and of servers."""
    rng = random.Random(seed)  # noqa: S311 - a schedule of faults, no secret
    faults = []
    for worker in rng.sample(range(5), rng.randint(1, 4)):
        at, back = rng.uniform(0.05, 1.6), rng.uniform(0.05, 1.0)
        again = f", restart={back:.3f}" if rng.random() < 0.6 else ""
        faults.append(f"crash(worker={worker}, at={at:.3f}{again})")
    for server in rng.sample(range(servers), rng.randint(0, 2)):
        at, back = rng.uniform(0.05, 1.6), rng.uniform(0.05, 0.5)
        faults.append(f"crash(server={server}, at={at:.3f}, restart={back:.3f})")
    return f"[{', '.join(faults)}]"


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("seed", range(20))
def test_every_sample_is_seen_whoever_dies(virtually, recipe, seed):
    protocol = strategy(recipe)
    faults = some_faults(seed, protocol.count_servers(5))
    done = virtually(
        a_job("momentum"), protocol, workers=5, seconds=UNEVEN, faults=faults, detection=0.3
    )
    assert done.run.samples == EPOCHS * SAMPLES, faults


def test_the_server_of_an_island_is_on_the_host_of_its_first_worker():
    protocol = strategy("hierarchical(islands=2)")
    places = ProcessHosts.in_blocks(5, 3, (2, 1), Link(1e6), groups=protocol.groups(5))
    assert places.workers == ("host-0",) * 3 + ("host-1",) * 2
    assert places.servers == ("host-0", "host-1", "host-2")


def test_a_step_within_an_island_costs_no_link(virtually):
    # An evaluation reads from the server between the islands, however rarely these meet.
    job = a_job("plain", validates=False)
    sent = {}
    for every in (1, 4):
        recipe = strategy(f"hierarchical(outer=averaging(every={every}), islands=2)")
        places = ProcessHosts.in_blocks(4, 3, (2, 1), Link(1e4, 1e-3), groups=recipe.groups(4))
        done = virtually(job, recipe, workers=4, places=places)
        sent[every] = done.run.seconds
    # 83 parameters of 8 bytes there and back take 0.13 s on such a link, and computing takes 0.1 s.
    assert sent[1] > 1.5 * sent[4]


def test_servers_beside_workers_are_reached_without_a_link():
    places = ProcessHosts.colocated(3, 4, Link(1e6))
    assert places.workers == ("host-0", "host-1", "host-2")
    assert places.servers == ("host-0", "host-1", "host-2", "host-0")
