"""A virtual process: who it is, whether it lives, and for how long it stands still."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


class Crashed(Exception):  # noqa: N818 - it names what happened
    """A process that is dead tried to go on."""


@dataclass(eq=False, slots=True)
class VirtualProcess:
    """A worker or a server, over all of its lives."""

    name: str
    host: str
    life: int = 0
    """How often it was started; a message of an earlier life is fenced."""
    alive: bool = False
    deaths: list[float] = field(default_factory=list)
    """When each of its lives ended."""
    resumes: float = 0.0
    """It stands still until then."""
    stopped: float = 0.0
    """Seconds that it was made to stand still, in all of its lives."""

    def begin(self) -> int:
        """Start another life; its number."""
        self.life += 1
        self.alive = True
        return self.life

    def end(self, now: float) -> None:
        """Die."""
        self.alive = False
        self.deaths.append(now)

    def is_in(self, life: int) -> bool:
        """Whether that life has not ended."""
        return self.alive and self.life == life

    def died(self, life: int) -> float:
        """When that life ended; infinity if it has not."""
        return self.deaths[life - 1] if life <= len(self.deaths) else math.inf

    def pause(self, now: float, seconds: float) -> None:
        """Do nothing from now on for so long; two such stretches that overlap are one."""
        before = max(self.resumes, now)
        self.resumes = max(before, now + seconds)
        self.stopped += self.resumes - before
