"""Random faults: crashes, pauses, cut links, lost messages and isolated workers."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from manyhands.sampling.permutation import mix
from manyhands.virtual import CoordinatorCrash, Crash, Cut, Fault, Faults, Isolate, Lose, Pause
from manyhands.virtual.conditions.compute_times import Constant, Exponential, LogNormal

if TYPE_CHECKING:
    from manyhands.protocols import StrategyProtocol
    from manyhands.testing.cases.case import Case


def draw_fault(
    rng: random.Random,
    protocol: StrategyProtocol,
    workers: int,
    servers: int,
    horizon: float,
    tick: float,
) -> Fault:
    """A fault as in `Faults.draw`; often at the very moment at which a gradient is computed."""
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


def with_more_faults(case: Case, seed: int) -> Case:
    """The case with more faults, in half of all cases.

    Single answers and calls are lost; links are restored after the worker was declared lost; two
    workers crash together; storing the model takes a while, with crashes until then; the
    coordinator crashes.
    """
    rng = random.Random(mix(seed, 12))  # noqa: S311 - not for secrets
    if rng.random() < 0.5:
        return case
    times, protocol, workers = case.conditions.times, case.protocol, case.workers
    if not isinstance(times, Constant | LogNormal | Exponential):
        raise TypeError(f"{times} is not a distribution that is drawn here")
    tick = times.mean
    horizon = max((healed(fault) for fault in case.faults.faults), default=0.0) + 8 * tick
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
    for _ in range(deaths.choice((0, 1, 3))):
        at = round(deaths.uniform(0, 1.5 * horizon), 3)
        more.append(CoordinatorCrash(at, round(deaths.choice((0.0, tick, horizon / 4)), 3)))
    lasts = max(map(healed, more), default=0.0) + (1 + len(more)) * (2 + detection + 2 * saving)
    grown = 1 + len(more) / (2 + len(case.faults.faults))
    return replace(
        case,
        conditions=replace(case.conditions, saving=saving),
        faults=Faults((*case.faults.faults, *more)),
        deadline=grown * case.deadline + lasts + len(case.faults.faults) * 2 * saving,
    )


def _kinds(protocol: StrategyProtocol, servers: int) -> tuple[str, ...]:
    """The kinds of faults that a run of the protocol can have."""
    if protocol.peer_servers:
        return ("worker", "worker", "pause", "cut peers", "cut peers")
    if not servers:
        return ("worker", "worker", "pause")
    return ("worker", "worker", "server", "pause", "pause server", "cut", "cut")


def healed(fault: Fault) -> float:
    """When a fault is over."""
    match fault:
        case Crash(at=at, restart=restart):
            return at + (restart or 0.0)
        case CoordinatorCrash(at=at, restart=restart):
            return at + restart
        case Pause(at=at, seconds=seconds):
            return at + (seconds or 0.0)
        case Cut(stop=stop):
            return stop
        case Lose(at=at):
            return at
        case Isolate(at=at, seconds=seconds, restart=restart):
            return at + seconds + 1.0 + (restart or 0.0)
    raise TypeError(f"{fault} is not a fault that is drawn here")
