"""Figures of a calibration whose runs fail, find no time, or are disturbed by other programs."""

import random
from dataclasses import dataclass, field

import pytest

from manyhands.failure import RunFailed
from manyhands.lab.calibration import Calibration
from manyhands.lab.calibration.figures import Figures, figures
from manyhands.lab.calibration.timed_run import NothingTimed, TimedRun, WorkerTimes
from manyhands.lab.planning.timing import expected_range

SIZES = (8, 16, 32)
PER_SAMPLE = 0.001
EXTRA = {"single()": 0.0, "ensemble()": 0.0, "allreduce()": 0.004, "fully_sharded()": 0.006}
EXTRA |= {"asynchronous()": 0.005, "synchronous()": 0.007}


@dataclass
class Machine:
    """A machine on which runs are disturbed: some fail, and batches take longer for a while."""

    seed: int = 0
    slowest: float = 1.0
    """How many times as long batches take at most."""
    fails: dict[str, RunFailed] = field(default_factory=dict)
    needs_longer: frozenset[str] = frozenset()
    """Strategies that complete nothing in the usual time."""
    made: list[tuple[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)  # noqa: S311 - no secrets

    def __call__(self, strategy: str, workers: int, batch: int, longer: float) -> TimedRun:
        self.made.append((strategy, longer))
        if strategy in self.fails:
            raise self.fails[strategy]
        if strategy in self.needs_longer and longer == 1.0:
            return TimedRun(workers=(WorkerTimes(()),) * workers, steps=())
        share = batch // workers
        phases = [self.rng.uniform(1.0, self.slowest) for _ in range(6)]
        factors = [phase * self.rng.gauss(1.0, 0.02) for phase in phases for _ in range(20)]
        compute = tuple(PER_SAMPLE * share * factor for factor in factors)
        steps = tuple((PER_SAMPLE * share + EXTRA[strategy]) * factor for factor in factors)
        times = WorkerTimes(compute, (0.0,) * len(compute))
        return TimedRun((times,) * workers, steps, slowdown=self.slowest)


def calibration(found: Figures) -> Calibration:
    return Calibration(
        date="",
        job="job",
        parameters=100,
        compute=found.compute,
        sharing=found.sharing,
        exchange=found.exchange,
        missing=found.missing,
        slowdown=found.slowdown,
        noise=found.noise,
    )


def test_an_undisturbed_machine_gives_what_is_so_without_doubts() -> None:
    found = figures(Machine(0), SIZES, 2, lambda _: None)
    assert [one.samples for one in found.compute] == [*SIZES]
    assert found.compute[1].seconds == pytest.approx(0.016, rel=0.02)
    assert found.collective == pytest.approx(0.004, rel=0.2)
    assert found.sharded == pytest.approx(0.006, rel=0.2)
    assert found.exchange == pytest.approx(0.005, rel=0.2)
    assert calibration(found).doubts == ()
    assert calibration(found).deviation < 0.01


@pytest.mark.parametrize("slowest", [1.5, 3.0])
def test_on_a_busy_machine_the_range_of_a_plan_has_the_speed_of_an_idle_one(slowest: float) -> None:
    within = 0
    for seed in range(40):
        found = calibration(figures(Machine(seed, slowest), SIZES, 2, lambda _: None))
        rate, idle = 16 / found.seconds(16), 16 / 0.016
        least, most = expected_range(
            rate, rate, rate, found.deviation, least=1.0, most=found.slowdown
        )
        within += least <= idle <= most
        assert any(f"up to {slowest:.1f} times too long" in words for words in found.doubts)
    assert within >= 36


def test_phases_of_load_count_as_what_they_are_and_not_as_many_batches() -> None:
    """A hundred and twenty batches in six phases say as much as six, so 0.02 would be wrong."""
    found = calibration(figures(Machine(1, 3.0), SIZES, 2, lambda _: None))
    assert found.deviation > 0.08


@pytest.mark.parametrize("strategy", sorted(EXTRA))
def test_a_run_that_fails_costs_no_other_figure(strategy: str) -> None:
    fails: dict[str, RunFailed] = {strategy: RunFailed("it broke")}
    machine = Machine(0, fails=fails)
    if strategy == "single()":
        with pytest.raises(RunFailed, match=r"nothing could be measured: batches of 8 .* it broke"):
            figures(machine, SIZES, 2, lambda _: None)
        return
    found = figures(machine, SIZES, 2, lambda _: None)
    assert len(found.compute) == len(SIZES)
    assert len(found.missing) == 1
    assert found.missing[0].endswith(": it broke")
    whole = figures(Machine(0), SIZES, 2, lambda _: None)
    same = [
        name
        for name in ("sharing", "exchange", "collective", "sharded")
        if getattr(found, name) == pytest.approx(getattr(whole, name), abs=0.001)
    ]
    assert len(same) >= 3
    assert calibration(found).doubts == (
        f"not measured, and taken for nothing: {found.missing[0]}",
    )


def test_a_run_without_a_step_is_repeated_for_longer_once() -> None:
    machine = Machine(0, needs_longer=frozenset(EXTRA))
    found = figures(machine, SIZES, 2, lambda _: None)
    assert found.missing == ()
    assert machine.made[:2] == [("single()", 1.0), ("single()", 4.0)]
    silent = Machine(0, fails={"allreduce()": NothingTimed("no step")})
    found = figures(silent, SIZES, 2, lambda _: None)
    assert [longer for name, longer in silent.made if name == "allreduce()"] == [1.0, 4.0]
    assert found.missing == ("two workers with allreduce: no step",)


def test_one_size_alone_is_a_calibration() -> None:
    def run(strategy: str, workers: int, batch: int, longer: float) -> TimedRun:
        if strategy == "single()" and batch != 16:
            raise RunFailed("no time was left for it")
        return Machine(0)(strategy, workers, batch, longer)

    found = figures(run, SIZES, 2, lambda _: None)
    assert [one.samples for one in found.compute] == [16]
    assert len(found.missing) == 2
