"""Times and rates under which a virtual run is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from manyhands.pacing import factor
from manyhands.virtual.simulator.ports import EQUAL, Sharing

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from manyhands.costs import CodingSpeeds, PieceTime
    from manyhands.pacing import Pace
    from manyhands.virtual.conditions.compute_times import Times


@dataclass(frozen=True)
class Conditions:
    """Times and rates of a virtual run."""

    times: Times
    """Compute time of a batch."""
    slow: tuple[Pace, ...] = ()
    """Workers that are slowed."""
    stretch: float = 1.0
    """Factor of all compute times: smaller parts of a batch take less."""
    service: float = 0.0
    """Core seconds that a server needs per update."""
    detection: float = 5.0
    """Seconds until the loss of a worker is detected and its samples are leased again."""
    copy_rate: float = 2e9
    """Bytes per second at which messages are copied within one host."""
    handover: float = 0.0
    """Additional seconds of a message within one host, until its receiver has it."""
    saving: float = 0.0
    """Seconds that storing the model takes, at the end of the run."""
    coding: CodingSpeeds | None = None
    """How fast codecs encode and decode; None takes no time."""
    sharing: Sharing = EQUAL
    """How transfers share the links of hosts."""
    starts_free: bool = False
    """Whether what workers receive before their first batch takes no time: a short run then has the
    speed of a long one."""
    pieces: tuple[PieceTime, ...] = ()
    """What the pieces of the model took when they were measured, for pipelines."""

    def __post_init__(self) -> None:
        seconds = (self.service, self.detection, self.handover, self.saving)
        if min(seconds) < 0 or self.copy_rate <= 0:
            raise ValueError(
                "service, detection, handover and saving must be 0 or more seconds, and copy_rate "
                f"above 0, got service={self.service}, detection={self.detection}, "
                f"handover={self.handover}, saving={self.saving}, copy_rate={self.copy_rate}"
            )

    def seconds(self, rank: int, rng: random.Random) -> Callable[[], float]:
        """A function that draws the compute times of one worker's batches."""
        draw, longer = self.times.of(rank, rng), self.stretch * factor(self.slow, rank)
        return draw if longer == 1 else lambda: longer * draw()
