"""What lies between two steps of a worker: it waits for the network, and others use the cache."""

from __future__ import annotations

import time
from typing import Final

import torch

_OTHER: Final = 16 << 20
"""Bytes: several times the cache of a core."""
_SECONDS: Final = 0.01


class IdleTime:
    """Time between two measurements, in which a core is as it is between two exchanges of a run.

    What a worker encodes was computed before it, and a server serves others between two exchanges:
    nothing of it is in the core's cache. And a core that has waited takes some time to reach its
    speed. Measured without either, encoding seems up to a half faster than it is in a run.
    """

    def __init__(self) -> None:
        self._memory = torch.zeros(_OTHER, dtype=torch.uint8)

    def pass_by(self) -> None:
        """Use other memory, and wait."""
        self._memory.add_(1)
        time.sleep(_SECONDS)
