"""Program of placed modules: each computed on its worker, with results sent to all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.collectives import (
    FORWARD,
    BeginCollective,
    ComputeShare,
    EndCollective,
    StepProgram,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from manyhands.collectives import Instruction
    from manyhands.placements.forecasts.placed_calls import PlacedCall


def placed_program(
    calls: Sequence[PlacedCall],
    rest: float,
    owners: Mapping[str, Sequence[int]],
    summed: Sequence[tuple[Sequence[int], int]],
    workers: int,
) -> StepProgram:
    """What each worker does in a step.

    A worker that computes a call waits for the results that the call needs, and for nothing else,
    so branches that do not need each other are computed at the same time.

    Args:
        calls: the calls of placed modules in the forward pass, in order.
        rest: the work that every worker does between the forward and the backward pass.
        owners: by module, the workers that compute its calls in turn.
        summed: for modules on several workers, these, and the bytes of the module's gradients.
        workers: number of workers.
    """
    total = sum(call.work for call in calls) + rest
    scale = workers / total if total else 0.0
    turns: dict[str, int] = {}
    at: list[int] = []
    for call in calls:
        several, turn = owners[call.module], turns.get(call.module, 0)
        at.append(several[turn % len(several)])
        turns[call.module] = turn + 1
    users = [[user for user, one in enumerate(calls) if n in one.needs] for n in range(len(calls))]
    return StepProgram(
        tuple(
            tuple(_of(rank, calls, rest * scale, scale, at, users, summed, workers))
            for rank in range(workers)
        )
    )


def _of(
    rank: int,
    calls: Sequence[PlacedCall],
    rest: float,
    scale: float,
    at: Sequence[int],
    users: Sequence[Sequence[int]],
    summed: Sequence[tuple[Sequence[int], int]],
    workers: int,
) -> list[Instruction]:
    """The instructions of one worker; the backward of call c has the key len(calls) + c."""
    found: list[Instruction] = []
    under_way: set[int] = set()

    def wait(*keys: int) -> None:
        for key in sorted(under_way.intersection(keys)):
            found.append(EndCollective(key))
            under_way.discard(key)

    def send(key: int, root: int, size: int) -> None:
        # A broadcast is from the first of its workers.
        ranks = (root, *(one for one in range(workers) if one != root))
        found.append(BeginCollective(key, "broadcast", size, ranks))
        under_way.add(key)

    count = len(calls)
    for number, call in enumerate(calls):
        if at[number] == rank:
            wait(*call.needs)
            found.append(ComputeShare(FORWARD * scale * call.work))
        if workers > 1:
            send(number, at[number], call.outputs)
    wait(*range(count))
    found.append(ComputeShare(rest))
    for number in reversed(range(count)):
        if at[number] == rank:
            wait(*(count + user for user in users[number]))
            found.append(ComputeShare((1 - FORWARD) * scale * calls[number].work))
        if workers > 1 and calls[number].learns:
            send(count + number, at[number], calls[number].inputs)
    wait(*range(2 * count))
    for key, (several, size) in enumerate(summed, start=2 * count):
        if rank in several:
            found += [BeginCollective(key, "allreduce", size, tuple(several)), EndCollective(key)]
    return [one for one in found if not (isinstance(one, ComputeShare) and not one.share)]
