"""When a pipeline does what: a table with durations, worked out without running it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from manyhands.schedules.table import Action, Table


@dataclass(frozen=True)
class Durations:
    """What each stage takes for one microbatch, in seconds or any other unit.

    The first stage has nobody to give an input gradient to. Where the backward is computed in
    halves, it computes all of it with the second, as torch does.
    """

    forward: tuple[float, ...]
    input_gradient: tuple[float, ...]
    """For the stage before."""
    weight_gradient: tuple[float, ...]
    """Of the stage's own parameters."""
    transfer: float = 0.0
    """From the end of an action to when another rank has what it made; it takes nobody's time."""

    @classmethod
    def even(
        cls,
        stages: int,
        forward: float,
        input_gradient: float,
        weight_gradient: float,
        transfer: float = 0.0,
    ) -> Durations:
        """The same for every stage."""
        return cls(
            (forward,) * stages, (input_gradient,) * stages, (weight_gradient,) * stages, transfer
        )

    def of(self, action: Action) -> float:
        """What an action takes."""
        stage = action.stage
        match action.kind:
            case "forward":
                return self.forward[stage]
            case "backward":
                return self.input_gradient[stage] + self.weight_gradient[stage]
            case "input":
                return self.input_gradient[stage] if stage else 0.0
            case "weight":
                return self.weight_gradient[stage] + (0.0 if stage else self.input_gradient[stage])


@dataclass(frozen=True, slots=True)
class Timed:
    """An action, and when it happens."""

    action: Action
    start: float
    stop: float


@dataclass(frozen=True)
class Replay:
    """A table on a clock that begins with its first action."""

    ranks: tuple[tuple[Timed, ...], ...]

    @property
    def makespan(self) -> float:
        """From the first action of any rank to the end of the last."""
        return max(actions[-1].stop for actions in self.ranks)

    @property
    def idle_share(self) -> float:
        """What part of the ranks' time, until all are done, is spent on nothing: the bubble."""
        busy = sum(timed.stop - timed.start for timed in self._all())
        return 1 - busy / (len(self.ranks) * self.makespan) if self.makespan else 0.0

    def _all(self) -> Iterator[Timed]:
        for actions in self.ranks:
            yield from actions


class DeadlockError(ValueError):
    """Ranks wait for each other for ever: this order cannot be executed."""


def replay(table: Table, durations: Durations) -> Replay:
    """When every action happens, if each begins as soon as its rank and what it needs are there.

    Raises:
        DeadlockError: the orders contradict each other; the message says who waits for what.
    """
    made: dict[tuple[bool, int, int], float] = {}
    done: tuple[list[Timed], ...] = tuple([] for _ in table.ranks)
    left = sum(map(len, table.ranks))
    while left:
        before = left
        for rank, actions in enumerate(table.ranks):
            while len(done[rank]) < len(actions):
                action = actions[len(done[rank])]
                ready = _ready(action, table, made, durations.transfer)
                if ready is None:
                    break
                start = max(ready, done[rank][-1].stop if done[rank] else 0.0)
                timed = Timed(action, start, start + durations.of(action))
                done[rank].append(timed)
                if action.kind != "weight":
                    key = (action.kind == "forward", action.stage, action.microbatch)
                    made[key] = timed.stop
                left -= 1
        if left == before:
            waiting = (
                f"rank {rank} waits to do {actions[len(done[rank])]}"
                for rank, actions in enumerate(table.ranks)
                if len(done[rank]) < len(actions)
            )
            raise DeadlockError(f"this schedule cannot go on: {', '.join(waiting)}")
    return Replay(tuple(map(tuple, done)))


def _ready(
    action: Action, table: Table, made: dict[tuple[bool, int, int], float], transfer: float
) -> float | None:
    """When what an action needs has arrived on its rank; None if it is not made yet."""
    stage, number = action.stage, action.microbatch
    match action.kind:
        case "forward":
            needs = [(True, stage - 1, number)] if stage else []
        case "weight":
            needs = [(False, stage, number)]
        case _:
            needs = [(True, stage, number)]
            if stage + 1 < table.stages:
                needs.append((False, stage + 1, number))
    latest = 0.0
    for need in needs:
        if need not in made:
            return None
        away = table.rank_of(need[1]) != table.rank_of(stage)
        latest = max(latest, made[need] + (transfer if away else 0.0))
    return latest
