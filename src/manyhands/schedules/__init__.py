"""Pipeline schedules as tables: one file per schedule, pure functions without torch."""

from typing import Final, Literal, Protocol

from manyhands.schedules.gpipe import gpipe
from manyhands.schedules.interleaved import interleaved
from manyhands.schedules.messages import messages
from manyhands.schedules.one_f_one_b import one_f_one_b
from manyhands.schedules.pipedream import pipedream
from manyhands.schedules.replay import DeadlockError, Durations, Replay, Timed, replay
from manyhands.schedules.table import LETTERS, Action, Kind, Table
from manyhands.schedules.zero_bubble import zero_bubble


class Schedule(Protocol):
    """Returns the table for a number of stages, microbatches and ranks.

    Raises ValueError, naming numbers that fit, if there is none.
    """

    def __call__(self, stages: int, microbatches: int, ranks: int) -> Table:
        """The table."""


Name = Literal["gpipe", "one_f_one_b", "interleaved", "zero_bubble", "pipedream"]

ALL: Final[dict[Name, Schedule]] = {
    "gpipe": gpipe,
    "one_f_one_b": one_f_one_b,
    "interleaved": interleaved,
    "zero_bubble": zero_bubble,
    "pipedream": pipedream,
}
"""Every schedule by name. The shared tests cover each schedule listed here."""

__all__ = [
    "ALL",
    "LETTERS",
    "Action",
    "DeadlockError",
    "Durations",
    "Kind",
    "Name",
    "Replay",
    "Schedule",
    "Table",
    "Timed",
    "gpipe",
    "interleaved",
    "messages",
    "one_f_one_b",
    "pipedream",
    "replay",
    "zero_bubble",
]
