"""Looped schedules, with several stages per rank: the order of interleaved 1F1B and zero bubble."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from manyhands.schedules.table import Action, Table

if TYPE_CHECKING:
    from manyhands.schedules.table import Kind


@dataclass(frozen=True)
class Loop:
    """The order of microbatches: a round of them passes a rank's stages, one after another."""

    stages: int
    microbatches: int
    ranks: int
    rounds: int

    @property
    def local(self) -> int:
        """Stages per rank."""
        return self.stages // self.ranks

    @property
    def per_round(self) -> int:
        """Microbatches that a rank computes in one stage before it continues with the next."""
        return self.microbatches // self.rounds

    @property
    def total(self) -> int:
        """Number of forwards of a rank, and of backwards."""
        return self.local * self.microbatches

    def ahead(self, rank: int, hops: int) -> int:
        """Forwards of a rank before it alternates.

        A round in all its stages but the last, and `hops` for every rank after it.
        """
        return min((self.local - 1) * self.per_round + hops * (self.ranks - 1 - rank), self.total)

    def forward_stage(self, rank: int, number: int) -> int:
        """The stage of a rank's forward of this number: its first stage first."""
        return number // self.per_round % self.local * self.ranks + rank

    def backward_stage(self, rank: int, number: int) -> int:
        """The stage of a rank's backward of this number: its last stage first."""
        return (self.local - 1 - number // self.per_round % self.local) * self.ranks + rank


def looped(loop: Loop, hops: int, *, halves: bool) -> Table:
    """Warm-up forwards, then forwards and backwards in turn, then the remaining backwards.

    With `halves`, rank r postpones the gradients of parameters by r backwards, and computes the
    rest at the end.
    """
    return Table(
        loop.stages,
        loop.microbatches,
        tuple(tuple(_actions(loop, rank, hops, halves=halves)) for rank in range(loop.ranks)),
    )


def _actions(loop: Loop, rank: int, hops: int, *, halves: bool) -> list[Action]:
    actions: list[Action] = []
    begun: Counter[tuple[Kind, int]] = Counter()

    def act(kind: Kind, stage: int) -> None:
        """The next microbatch of this kind in this stage: every stage takes them in order."""
        actions.append(Action(kind, stage, begun[kind, stage]))
        begun[kind, stage] += 1

    ahead = loop.ahead(rank, hops)
    for number in range(ahead):
        act("forward", loop.forward_stage(rank, number))
    for number in range(loop.total):
        if number + ahead < loop.total:
            act("forward", loop.forward_stage(rank, number + ahead))
        act("input" if halves else "backward", loop.backward_stage(rank, number))
        if halves and number >= rank:
            act("weight", loop.backward_stage(rank, number - rank))
    if halves:
        for number in range(max(0, loop.total - rank), loop.total):
            act("weight", loop.backward_stage(rank, number))
    return actions
