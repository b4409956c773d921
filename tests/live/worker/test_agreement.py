"""Decisions by the clock: how often workers exchange one, and when they are made."""

from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
import torch

from manyhands.live.worker.checkpoints.agreement import Agreement

if TYPE_CHECKING:
    from manyhands.job import Job


class Clock:
    """A clock that only work moves."""

    def __init__(self, step: float, collective: float) -> None:
        self.now = 0.0
        self.step, self.collective = step, collective
        self.looks: list[float] = []

    def agree(self, _decision: torch.Tensor) -> None:
        self.looks.append(self.now)
        self.now += self.collective


def agreement(
    clock: Clock, seconds: float | None = None, evaluation: float | None = None
) -> Agreement:
    about = SimpleNamespace(seconds=seconds, evaluation_seconds=evaluation, checkpoint=None)
    return Agreement(cast("Job", about), torch.device("cpu"), lambda: clock.now)


def ends_after(clock: Clock, agreed: Agreement) -> float:
    """Seconds until a decision ends the run."""
    for step in range(100_000):
        clock.now += clock.step
        if agreed.look(step, clock.agree).over:
            return clock.now
    raise AssertionError("the run does not end")


@pytest.mark.parametrize("collective", [0.0001, 0.001, 0.02, 0.245, 1.0])
@pytest.mark.parametrize("step", [0.002, 0.05, 0.4])
def test_decisions_take_a_small_part_of_the_time(step: float, collective: float) -> None:
    clock = Clock(step, collective)
    ends = ends_after(clock, agreement(clock, seconds=60.0))
    spent = len(clock.looks) * collective
    # What takes a second is exchanged every five seconds: no one is kept waiting for longer.
    assert spent <= max(0.06, collective / 5.0) * 60.0 + 5 * collective
    assert 60.0 <= ends <= 60.0 + 2 * step + 3 * collective, "the limit is kept"


def test_evaluations_by_the_clock_are_on_time() -> None:
    clock = Clock(0.1, 0.245)
    agreed, due = agreement(clock, evaluation=3.0), list[float]()
    for step in range(300):
        clock.now += clock.step
        if agreed.look(step, clock.agree).evaluates:
            due.append(clock.now)
            agreed.evaluated()
    gaps = [after - before for before, after in pairwise(due)]
    assert gaps
    assert max(gaps) <= 3.0 + 4 * (0.1 + 0.245)


def test_a_slow_first_decision_is_not_taken_for_the_cost_of_all() -> None:
    clock = Clock(0.01, 3.0)
    agreed = agreement(clock, seconds=100.0)
    clock.now += clock.step
    agreed.look(0, clock.agree)
    clock.collective = 0.001
    ends_after(clock, agreed)
    between = [after - before for before, after in pairwise(clock.looks)]
    assert sorted(between)[len(between) // 2] < 0.4
