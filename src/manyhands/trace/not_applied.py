"""Record of updates that were not applied because they had NaN or infinity.

An event `refused` names the worker, what its update had, how many of its updates and samples this
process has refused so far, and where the samples are. Of very many, only some are written, and
`settle` writes the last: counts are exact, and a trace stays small.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from manyhands.trace.recorder import Recorder, keeps

_ALL: Final = 200
"""So many events of a worker are all written; then every second, every fourth, and so on."""


class NotApplied:
    """The refusals that one process records.

    Args:
        recorder: its trace.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._updates: Counter[str] = Counter()
        self._samples: Counter[str] = Counter()
        self._unwritten: dict[str, dict[str, str]] = {}

    def note(self, worker: int | str, what: str, samples: int, where: Mapping[str, object]) -> None:
        """Note an update that is not applied.

        Args:
            worker: the rank of the worker that computed it.
            what: what it has: NaN or infinity.
            samples: how many samples it was computed from.
            where: where these are.
        """
        rank = str(worker)
        number = self._updates[rank]
        self._updates[rank] += 1
        self._samples[rank] += samples
        detail = {
            "worker": rank,
            "what": what,
            "updates": str(self._updates[rank]),
            "samples": str(self._samples[rank]),
            **{name: str(value) for name, value in where.items()},
        }
        if keeps(number, _ALL):
            self._unwritten.pop(rank, None)
            self._recorder.event("refused", detail)
        else:
            self._unwritten[rank] = detail

    def settle(self) -> None:
        """Write the last refusal of each worker, if it was not written."""
        for detail in self._unwritten.values():
            self._recorder.event("refused", detail)
        self._unwritten.clear()
