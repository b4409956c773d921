"""Messages between the ranks of a pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from manyhands.schedules.table import Table


def messages(table: Table, size: Callable[[int, int], int]) -> tuple[tuple[int, ...], ...]:
    """For every rank the bytes of each tensor that it sends in a step, in order.

    Args:
        table: the schedule.
        size: bytes of a stage's output for a microbatch; its gradient has as many.

    Example:
        >>> from manyhands.schedules import gpipe
        >>> messages(gpipe(stages=2, microbatches=3, ranks=2), lambda stage, microbatch: 100)
        ((100, 100, 100), (100, 100, 100))
    """
    sent: list[tuple[int, ...]] = []
    for actions in table.ranks:
        own = []
        for action in actions:
            if action.kind == "weight":
                continue
            forward = action.kind == "forward"
            to = action.stage + (1 if forward else -1)
            if 0 <= to < table.stages and table.rank_of(to) != table.rank_of(action.stage):
                own.append(size(action.stage if forward else to, action.microbatch))
        sent.append(tuple(own))
    return tuple(sent)
