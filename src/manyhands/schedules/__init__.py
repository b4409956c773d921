"""Pipeline schedules as tables: one file per schedule, pure functions without torch.

>>> len(gpipe(stages=2, microbatches=4, ranks=2).ranks)
2
"""

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


def by_name(name: str) -> Schedule:
    """The schedule of a name, built in or added.

    Raises:
        ValueError: there is none; the message names all.
    """
    known: dict[str, Schedule] = dict(ALL.items()) | _added
    if name not in known:
        raise ValueError(f"there is no schedule {name!r}; there are {', '.join(known)}")
    return known[name]


def add(schedule: Schedule) -> None:
    """Add a schedule under the name of its function; a second definition replaces the first.

    Raises:
        TypeError: a built-in schedule has this name.
    """
    name = getattr(schedule, "__name__", "")
    if not name.isidentifier() or name in ALL:
        raise TypeError(
            f"a schedule is a function with a name of its own, got {name or schedule!r}"
        )
    _added[name] = schedule


_added: dict[str, Schedule] = {}

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
    "add",
    "by_name",
    "gpipe",
    "interleaved",
    "messages",
    "one_f_one_b",
    "pipedream",
    "replay",
    "zero_bubble",
]
