"""Replay of a table with given durations: the times of all actions, computed without running."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from manyhands.schedules.table import Action, Table


@dataclass(frozen=True)
class Durations:
    """Durations of each stage for one microbatch, in seconds or any other unit.

    The first stage has no previous stage that needs an input gradient. If the backward is computed
    in halves, it computes all of it in the second half, as torch does.
    """

    forward: tuple[float, ...]
    input_gradient: tuple[float, ...]
    """Gradient of the stage's input."""
    weight_gradient: tuple[float, ...]
    """Gradients of the stage's parameters."""
    transfer: float = 0.0
    """From the end of an action until another rank has its result; ranks can compute meanwhile."""

    @classmethod
    def even(
        cls,
        stages: int,
        forward: float,
        input_gradient: float,
        weight_gradient: float,
        transfer: float = 0.0,
    ) -> Durations:
        """Equal durations for every stage."""
        return cls(
            (forward,) * stages, (input_gradient,) * stages, (weight_gradient,) * stages, transfer
        )

    def of(self, action: Action) -> float:
        """The duration of an action."""
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
    """An action with its start and end."""

    action: Action
    start: float
    stop: float


@dataclass(frozen=True)
class Replay:
    """The times of a table's actions, from the start of the first one."""

    ranks: tuple[tuple[Timed, ...], ...]

    @property
    def makespan(self) -> float:
        """Time from the first action of any rank to the end of the last."""
        return max(actions[-1].stop for actions in self.ranks)

    @property
    def idle_share(self) -> float:
        """The share of the ranks' time that is idle: the bubble."""
        busy = sum(timed.stop - timed.start for timed in self._all())
        return 1 - busy / (len(self.ranks) * self.makespan) if self.makespan else 0.0

    def _all(self) -> Iterator[Timed]:
        for actions in self.ranks:
            yield from actions


class DeadlockError(ValueError):
    """The table cannot be executed: ranks wait for each other."""


def replay(table: Table, durations: Durations) -> Replay:
    """The times of all actions, if each starts as soon as its rank is free and its inputs arrived.

    Raises:
        DeadlockError: ranks wait for each other; the message says for which actions.
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
                f"rank {rank} waits for {actions[len(done[rank])]}"
                for rank, actions in enumerate(table.ranks)
                if len(done[rank]) < len(actions)
            )
            raise DeadlockError(f"the schedule has a deadlock: {', '.join(waiting)}")
    return Replay(tuple(map(tuple, done)))


def _ready(
    action: Action, table: Table, made: dict[tuple[bool, int, int], float], transfer: float
) -> float | None:
    """When the inputs of an action have arrived; None if they are not computed yet."""
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
