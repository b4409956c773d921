"""A virtual process: its name, its incarnations, and its pauses."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


class Crashed(Exception):  # noqa: N818 - it names what happened
    """A dead process tried to continue."""


@dataclass(eq=False, slots=True)
class VirtualProcess:
    """A worker or a server, over all of its incarnations."""

    name: str
    host: str
    life: int = 0
    """How often it was started; messages of earlier incarnations are fenced."""
    alive: bool = False
    deaths: list[float] = field(default_factory=list)
    """When each of its incarnations ended."""
    resumes: float = 0.0
    """Time until which it is paused."""
    stopped: float = 0.0
    """Total seconds of its pauses, in all incarnations."""

    def begin(self) -> int:
        """Start another incarnation; return its number."""
        self.life += 1
        self.alive = True
        return self.life

    def end(self, now: float) -> None:
        """Die."""
        self.alive = False
        self.deaths.append(now)

    def is_in(self, life: int) -> bool:
        """Whether that incarnation is alive."""
        return self.alive and self.life == life

    def died(self, life: int) -> float:
        """When that incarnation ended; infinity if it is alive."""
        return self.deaths[life - 1] if life <= len(self.deaths) else math.inf

    def pause(self, now: float, seconds: float) -> None:
        """Pause for some seconds from now on; overlapping pauses are merged."""
        before = max(self.resumes, now)
        self.resumes = max(before, now + seconds)
        self.stopped += self.resumes - before
