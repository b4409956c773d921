"""Drawing of cases: what a seed stands for."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import TensorDataset

from manyhands.cluster import Link
from manyhands.job import Job
from manyhands.sampling.permutation import mix
from manyhands.testing.cases.case import Case
from manyhands.testing.cases.problem import (
    PROBES,
    Descent,
    QuadraticModel,
    half_square,
    loss_with_probes,
    with_probe_targets,
)
from manyhands.testing.cases.random_faults import draw_fault, healed
from manyhands.virtual import Conditions, Faults, ProcessHosts
from manyhands.virtual.conditions.compute_times import Constant, Exponential, LogNormal, Slow

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from manyhands.protocols import StrategyProtocol

    Draw = Callable[[random.Random, int, int], StrategyProtocol]
    """Draws a protocol: from a random generator, for a number of workers and of servers."""

WORKERS = range(2, 7)
"""Numbers of workers of a case, unless others are given."""


def draw(protocol: Draw, seed: int, workers: Sequence[int] = WORKERS) -> Case:
    """The case that a seed stands for, with crashes, pauses and cut links.

    Recorded seeds stay what they are only as long as the order of these draws does.
    """
    rng = random.Random(mix(seed, 11))  # noqa: S311 - not for secrets
    count, servers = rng.choice(workers), rng.choice((1, 1, 2))
    drawn = protocol(rng, count, servers)
    servers = drawn.needs(count).server_processes
    size, samples, epochs = rng.randint(1, 3), rng.randint(1, 20), rng.choice((1, 2, 3, 1.5))
    batch = max(rng.randint(1, 12), round(samples * epochs / 6))
    momentum = rng.choice((0.0, 0.0, 0.5))
    table = np.random.default_rng(seed).integers(-8, 9, (samples, size * drawn.shards))
    targets = table.astype(np.float64)
    mean = rng.choice((0.05, 0.3, 1.0))
    link = Link(rng.choice((300.0, 1e4, 1e6)), rng.choice((0.0, 0.01, 0.3)))
    rounds = max(1, round(epochs * samples / batch)) + 2
    horizon = rounds * (mean + 2 * link.latency + 200 / link.bandwidth) * rng.uniform(0.5, 1.5)
    data = _data(targets)
    optimizer: Callable[[Any], Any] = lambda model: Descent(model.parameters(), momentum)  # noqa: E731
    job = Job(
        model=lambda: QuadraticModel(drawn.shards, size),
        optimizer=optimizer,
        loss=half_square,
        data=data,
        validation=data if rng.random() < 0.5 else None,
        metrics=(),
        global_batch=batch,
        epochs=epochs,
        seconds=round(horizon / 2, 3) if rng.random() < 0.1 else None,
        seed=seed,
    )
    slow = (Slow(rng.randrange(count), 4.0),) if rng.random() < 0.3 else ()
    times = rng.choice(
        (
            Constant(mean, slow=slow),
            LogNormal(mean, 0.6, slow=slow),
            Exponential(mean, slow=slow),
        )
    )
    detection = rng.choice((0.0, 0.3, 2.0, 8.0))
    conditions = Conditions(times, service=rng.choice((0.0, 0.02)), detection=detection)
    places = (
        ProcessHosts.host_each(count, servers, link)
        if rng.random() < 0.7 and not drawn.shared_memory
        else ProcessHosts.one_host(count, servers, rng.randint(1, count))
    )
    troubles = rng.choice((0, 1, 2, 3, 4, 6, 8))
    faults = tuple(draw_fault(rng, drawn, count, servers, horizon, mean) for _ in range(troubles))
    calm = max((healed(fault) for fault in faults), default=0.0) + detection
    work = (2 + troubles) * rounds * count * (8 * mean + 8 * link.latency + 2000 / link.bandwidth)
    return Case(
        seed,
        drawn,
        count,
        job,
        targets,
        momentum,
        places,
        conditions,
        Faults(faults),
        deadline=calm + 10 * work + 100,
    )


def with_probes(case: Case) -> Case:
    """The case with probes at the end of every piece of the parameters."""
    pieces, job = case.shards, case.job
    size = case.targets.shape[1] // pieces + PROBES
    targets = with_probe_targets(case.targets, pieces)
    data = _data(targets)
    wider = replace(
        job,
        model=lambda: QuadraticModel(pieces, size, probes=True),
        loss=loss_with_probes(size),
        data=data,
        validation=None if job.validation is None else data,
    )
    return replace(case, job=wider, targets=targets, probes=True, _means={})


def without_faults(case: Case) -> Case:
    """The case with the same problem, cluster and speeds, and nothing that goes wrong."""
    return replace(case, faults=Faults(()))


def _data(targets: NDArray[np.float64]) -> TensorDataset:
    return TensorDataset(torch.from_numpy(targets), torch.zeros(len(targets)))
