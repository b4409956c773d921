"""What a seed decides: a problem, a cluster, and what goes wrong."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from manyhands.cluster import Link
from manyhands.job import Job
from manyhands.sampling.permutation import mix, permutation
from manyhands.virtual import (
    Conditions,
    Crash,
    Cut,
    Fault,
    Faults,
    Isolate,
    Lose,
    Pause,
    ProcessHosts,
)
from manyhands.virtual.conditions.compute_times import Constant, Exponential, LogNormal, Slow
from manyhands.virtual.worker.shared_model import SharedModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from manyhands.leasing.leases import Lease
    from manyhands.protocols import StrategyProtocol
    from manyhands.virtual.worker.shared_model import Replication

    Draw = Callable[[random.Random, int, int], StrategyProtocol]


@dataclass(frozen=True)
class Case:
    """One run, in all that decides about it."""

    variant: str
    seed: int
    protocol: StrategyProtocol
    workers: int
    job: Job
    targets: np.ndarray
    """The problem: the gradient of a sample is x − its target."""
    momentum: float
    places: ProcessHosts
    conditions: Conditions
    faults: Faults
    deadline: float
    """Virtual seconds, long after the last fault, by which the run must be over."""
    service_replaced: tuple[float, ...] = ()
    """When the service of the coordinator is replaced by one that knows what it was told."""
    _means: dict[Lease, np.ndarray] = field(default_factory=dict, repr=False)

    @property
    def servers(self) -> int:
        return self.protocol.count_servers(self.workers)

    @property
    def shards(self) -> int:
        return self.protocol.shards

    @property
    def rate(self) -> float:
        return RATE

    def __str__(self) -> str:
        job = self.job
        return (
            f"{self.protocol}, {self.workers} workers, {len(self.targets)} samples, global batch "
            f"{job.global_batch}, epochs {job.epochs}, seconds {job.seconds}, "
            f"{'with' if job.validation else 'without'} validation, {self.conditions}, "
            f"{'one host' if len(self.places.cluster.hosts) == 1 else self.places.cluster.link}, "
            f"faults {self.faults}"
            f"{f', service replaced at {self.service_replaced}' if self.service_replaced else ''}"
        )

    def gradient(self, x: np.ndarray, lease: Lease) -> np.ndarray:
        """The gradient of the mean of |x − target|² / 2 over a lease, for all parts."""
        mean = self._means.get(lease)
        if mean is None:
            order = permutation(len(self.targets), self.job.seed, lease.epoch)
            some = self.targets[order[lease.start : lease.stop].numpy()]
            mean = self._means[lease] = some.sum(0) / len(some)
        return x - mean

    def first(self, seed: int | None = None) -> np.ndarray:
        """Where everything begins: with the job's seed, or another one."""
        size = self.targets.shape[1] // self.shards
        pieces = [
            first(size, number, self.job.seed if seed is None else seed)
            for number in range(self.shards)
        ]
        return np.concatenate(pieces)


RATE = 0.1


def first(size: int, number: int, seed: int) -> np.ndarray:
    """Where a piece of the vector begins; another seed begins elsewhere."""
    return np.arange(size, dtype=np.float64) + number + seed % 5


class Point(nn.Module):
    """A vector in as many pieces as there are shards."""

    def __init__(self, pieces: int, size: int) -> None:
        super().__init__()
        for number in range(pieces):
            here = torch.from_numpy(first(size, number, torch.initial_seed()))
            self.register_parameter(f"piece{number}", nn.Parameter(here))

    def forward(self, targets: torch.Tensor) -> torch.Tensor:
        return torch.cat(list(self.parameters())) - targets


def half_square(way: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return way.square().sum() / (2 * len(way))


class Descent:
    """SGD with momentum, in as few words as the wrappers of torch's own have layers.

    It has what the parts of a model need of an optimizer: groups with rates, and a step.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], momentum: float) -> None:
        self.param_groups = [{"params": list(parameters), "lr": RATE}]
        self.state: dict[nn.Parameter, dict[str, torch.Tensor]] = {}
        self._momentum = momentum
        self._velocity: dict[int, torch.Tensor] = {}

    def step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                velocity = parameter.grad
                if self._momentum:
                    velocity = velocity.clone()
                    before = self._velocity.get(id(parameter))
                    if before is not None:
                        velocity.add_(before, alpha=self._momentum)
                    self._velocity[id(parameter)] = velocity
                parameter.data.add_(velocity, alpha=-group["lr"])


class Formula(SharedModel):
    """A model whose gradients are a formula, so that a run costs milliseconds."""

    def __init__(self, case: Case) -> None:
        super().__init__(case.job, case.shards)
        self._case = case
        # Both are one stretch, in as many parts as there are shards.
        self._here = _stretch(self._copy.parameters)
        self._found = _stretch(self._copy.updates)
        self._servers = list(range(case.shards))

    def gradient(self, worker: Replication, lease: Lease) -> tuple[float, list[int]]:
        """x − the mean target."""
        worker.computed += 1
        self._load(worker)
        found = self._found[:] = self._case.gradient(self._here, lease)
        if worker.optimizer is not None:
            worker.updates = [update.clone() for update in self._copy.updates]
        return float(found @ found), self._servers[:: 1 if worker.rank % 2 else -1]


def _stretch(parts: list[torch.Tensor]) -> np.ndarray:
    """The numbers of all parts, where they lie."""
    first, size = parts[0], sum(part.nbytes for part in parts)
    return first.as_strided((size,), (1,)).numpy().view(np.float64)


def draw(variant: str, protocol: Draw, seed: int) -> Case:
    """The case that a seed stands for."""
    rng = random.Random(mix(seed, 11))  # noqa: S311 - not for secrets
    workers, servers = rng.randint(2, 6), rng.choice((1, 1, 2))
    drawn = protocol(rng, workers, servers)
    servers = drawn.needs(workers).server_processes
    size, samples, epochs = rng.randint(1, 3), rng.randint(1, 20), rng.choice((1, 2, 3, 1.5))
    batch = max(rng.randint(1, 12), round(samples * epochs / 6))
    momentum = rng.choice((0.0, 0.0, 0.5))
    table = np.random.default_rng(seed).integers(-8, 9, (samples, size * drawn.shards))
    targets = table.astype(np.float64)
    mean = rng.choice((0.05, 0.3, 1.0))
    link = Link(rng.choice((300.0, 1e4, 1e6)), rng.choice((0.0, 0.01, 0.3)))
    rounds = max(1, round(epochs * samples / batch)) + 2
    horizon = rounds * (mean + 2 * link.latency + 200 / link.bandwidth) * rng.uniform(0.5, 1.5)
    data = TensorDataset(torch.from_numpy(targets), torch.zeros(samples))
    job = Job(
        model=lambda: Point(drawn.shards, size),
        optimizer=lambda model: Descent(model.parameters(), momentum),
        loss=half_square,
        data=data,
        validation=data if rng.random() < 0.5 else None,
        metrics=(),
        global_batch=batch,
        epochs=epochs,
        seconds=round(horizon / 2, 3) if rng.random() < 0.1 else None,
        seed=seed,
    )
    slow = (Slow(rng.randrange(workers), 4.0),) if rng.random() < 0.3 else ()
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
        ProcessHosts.host_each(workers, servers, link)
        if rng.random() < 0.7 and not drawn.shared_memory
        else ProcessHosts.one_host(workers, servers, rng.randint(1, workers))
    )
    count = rng.choice((0, 1, 2, 3, 4, 6, 8))
    faults = tuple(_fault(rng, drawn, workers, servers, horizon, mean) for _ in range(count))
    calm = max((_healed(fault) for fault in faults), default=0.0) + detection
    work = (2 + count) * rounds * workers * (8 * mean + 8 * link.latency + 2000 / link.bandwidth)
    return Case(
        variant,
        seed,
        drawn,
        workers,
        job,
        targets,
        momentum,
        places,
        conditions,
        Faults(faults),
        deadline=calm + 10 * work + 100,
    )


def _fault(
    rng: random.Random,
    protocol: StrategyProtocol,
    workers: int,
    servers: int,
    horizon: float,
    tick: float,
) -> Fault:
    """Like those of `Faults.draw`; often at the very moment at which something is computed."""
    worker, server = rng.randrange(workers), rng.randrange(max(1, servers))
    at = rng.uniform(0, horizon)
    at = round(at // tick * tick if rng.random() < 0.3 else at, 3)
    seconds = max(0.001, round(rng.expovariate(4 / horizon), 3))
    match rng.choice(_kinds(protocol, servers)):
        case "worker":
            # The first one always returns, so that every run can end.
            stays_away = worker > 0 and rng.random() < 0.4
            return Crash(worker=worker, at=at, restart=None if stays_away else seconds)
        case "server":
            return Crash(server=server, at=at, restart=seconds)
        case "pause":
            return Pause(worker=worker, at=at, seconds=seconds)
        case "pause server":
            return Pause(server=server, at=at, seconds=seconds)
        case "cut peers":
            other = (worker + rng.randrange(1, workers)) % workers
            return Cut(f"worker-{worker}", f"worker-{other}", at, round(at + seconds, 3))
        case _:
            return Cut(f"worker-{worker}", f"server-{server}", at, round(at + seconds, 3))


def trouble(case: Case, seed: int) -> Case:
    """More that goes wrong, in half of all cases.

    Answers and calls that are lost one by one; links that heal after the worker was given up; two
    workers that die together; a model that takes a while to be stored, and deaths until then; a
    service that is replaced by one that knows what its predecessor was told.
    """
    rng = random.Random(mix(seed, 12))  # noqa: S311 - not for secrets
    if rng.random() < 0.5:
        return case
    times, protocol, workers = case.conditions.times, case.protocol, case.workers
    tick = times.mean
    horizon = max((_healed(fault) for fault in case.faults.faults), default=0.0) + 8 * tick
    saving = rng.choice((0.0, tick, 5 * tick, horizon))
    detection = case.conditions.detection
    more: list[Fault] = []
    for _ in range(rng.randint(1, 4)):
        worker, at = rng.randrange(workers), round(rng.uniform(0, 1.5 * horizon), 3)
        server = f"server-{rng.randrange(max(1, case.servers))}"
        back = round(rng.uniform(0, horizon / 4), 3)
        match rng.choice(("lose", "lose", "isolate", "isolate", "two", "one")):
            case "lose" if case.servers and server != f"server-{worker}":
                pair = (f"worker-{worker}", server)
                more.append(Lose(*(pair if rng.random() < 0.3 else pair[::-1]), at=at))
            case "isolate" if case.servers and not (
                protocol.peer_servers or protocol.shared_memory
            ):
                seconds = round(rng.choice((0.5, 1.2, 3.0)) * max(detection, tick), 3)
                stays_away = worker > 0 and rng.random() < 0.4
                more.append(Isolate(worker, at, seconds, None if stays_away else back))
            case "two":
                other = (worker + 1) % workers
                more += [
                    Crash(worker=worker, at=at, restart=back),
                    Crash(
                        worker=other, at=round(at + rng.choice((0.0, 0.01, tick)), 3), restart=back
                    ),
                ]
            case _:
                more.append(Crash(worker=worker, at=at, restart=back))
    deaths = random.Random(mix(seed, 13))  # noqa: S311 - not for secrets
    dies = tuple(
        round(deaths.uniform(0, 1.5 * horizon), 3) for _ in range(deaths.choice((0, 1, 3)))
    )
    lasts = max(map(_healed, more), default=0.0) + (1 + len(more)) * (2 + detection + 2 * saving)
    grown = 1 + len(more) / (2 + len(case.faults.faults))
    return replace(
        case,
        conditions=replace(case.conditions, saving=saving),
        faults=Faults((*case.faults.faults, *more)),
        deadline=grown * case.deadline + lasts + len(case.faults.faults) * 2 * saving,
        service_replaced=dies,
    )


def _kinds(protocol: StrategyProtocol, servers: int) -> tuple[str, ...]:
    """What can go wrong under a protocol."""
    if protocol.peer_servers:
        return ("worker", "worker", "pause", "cut peers", "cut peers")
    if not servers:
        return ("worker", "worker", "pause")
    return ("worker", "worker", "server", "pause", "pause server", "cut", "cut")


def _healed(fault: Fault) -> float:
    match fault:
        case Crash(at=at, restart=restart):
            return at + (restart or 0.0)
        case Pause(at=at, seconds=seconds):
            return at + seconds
        case Cut(stop=stop):
            return stop
        case Lose(at=at):
            return at
        case Isolate(at=at, seconds=seconds, restart=restart):
            return at + seconds + 1.0 + (restart or 0.0)
    raise TypeError(f"{fault} is no fault that is drawn here")
