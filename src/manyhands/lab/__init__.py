"""The lab: one job under several strategies, on the same machine, fairly."""

from manyhands.lab.compare import Compared, compare

__all__ = ["Compared", "compare"]
