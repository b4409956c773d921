"""Time that a virtual worker takes to encode and decode."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.virtual.simulator.kernel import passes

if TYPE_CHECKING:
    from manyhands.virtual.log import WorkerLog
    from manyhands.virtual.simulator.cores import Cores
    from manyhands.virtual.simulator.kernel import Kernel
    from manyhands.virtual.worker.endpoint import VirtualEndpoint


class CodingTime:
    """Encoding and decoding at a given speed.

    Shards are encoded one after the other when they are posted, and sent when they are encoded; the
    worker does nothing else meanwhile that waits for an answer. Decoding holds a core.

    Args:
        speed: bytes of vectors per second.
        endpoint: the endpoint whose messages are sent later.
        cores: the cores of the worker's host.
        kernel: the clock.
        log: the worker's trace.
    """

    @classmethod
    def at(
        cls,
        speed: float | None,
        endpoint: VirtualEndpoint,
        cores: Cores,
        kernel: Kernel,
        log: WorkerLog,
    ) -> CodingTime | None:
        """The time at a speed; None if encoding and decoding take no time."""
        return None if speed is None else cls(speed, endpoint, cores, kernel, log)

    def __init__(
        self, speed: float, endpoint: VirtualEndpoint, cores: Cores, kernel: Kernel, log: WorkerLog
    ) -> None:
        self._speed = speed
        self._endpoint = endpoint
        self._cores = cores
        self._kernel = kernel
        self._log = log

    def encode(self, nbytes: int) -> None:
        """Delay what is posted next."""
        begun, seconds = max(self._kernel.now, self._endpoint.busy_until), nbytes / self._speed
        self._endpoint.busy_until = begun + seconds
        self._log.time("encode", begun, seconds)

    async def settle(self) -> None:
        """Wait until everything is encoded."""
        remaining = self._endpoint.busy_until - self._kernel.now
        if remaining > 0:
            await passes(remaining)

    async def decode(self, nbytes: int) -> None:
        """Hold a core for the time."""
        begun = await self._cores.compute(self._endpoint.member, nbytes / self._speed)
        self._log.span("encode", begun)
