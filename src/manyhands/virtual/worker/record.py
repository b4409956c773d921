"""What a virtual run knows of one worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from manyhands.protocols.compression.worker import CodedEndpoint
    from manyhands.virtual.coordinator import LeaseChannel
    from manyhands.virtual.simulator.member import VirtualProcess
    from manyhands.virtual.worker.endpoint import VirtualEndpoint
    from manyhands.virtual.worker.shared_model import Replication


class WorkerRecord:
    """A worker over all of its incarnations.

    Args:
        member: its process.
        times: the random generator of its compute times.
        seconds: makes the function that draws them, of that generator.
    """

    __slots__ = (
        *("channel", "coded", "endpoint", "isolated", "member", "missed"),
        *("replication", "seconds", "times", "works"),
    )

    def __init__(
        self,
        member: VirtualProcess,
        times: random.Random,
        seconds: Callable[[random.Random], Callable[[], float]],
    ) -> None:
        self.member = member
        self.times = times
        self.seconds = seconds(times)
        """Draws the compute time of a batch."""
        self.replication: Replication | None = None
        self.endpoint: VirtualEndpoint | None = None
        self.coded: CodedEndpoint | None = None
        """What it sends and receives under codecs, if there are any."""
        self.channel: LeaseChannel | None = None
        self.works = False
        self.missed: set[int] = set()
        """Incarnations that ended and whose samples were leased again."""
        self.isolated: set[int] = set()
        """Those of them that were alive then, and not reachable."""
