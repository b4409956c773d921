"""Time that a virtual worker takes to encode and decode."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.virtual.simulator.kernel import passes

if TYPE_CHECKING:
    from manyhands.codecs import Codec
    from manyhands.costs import CodingSpeeds
    from manyhands.virtual.log import WorkerLog
    from manyhands.virtual.simulator.cores import Cores
    from manyhands.virtual.simulator.kernel import Kernel
    from manyhands.virtual.worker.endpoint import VirtualEndpoint


class CodingTime:
    """Encoding and decoding at given speeds.

    Shards are encoded one after the other when they are posted, and sent when they are encoded; the
    worker does nothing else meanwhile that waits for an answer. Decoding holds a core.

    Args:
        speeds: how fast codecs are.
        endpoint: the endpoint whose messages are sent later.
        cores: the cores of the worker's host.
        kernel: the clock.
        log: the worker's trace.
    """

    @classmethod
    def at(
        cls,
        speeds: CodingSpeeds | None,
        endpoint: VirtualEndpoint,
        cores: Cores,
        kernel: Kernel,
        log: WorkerLog,
    ) -> CodingTime | None:
        """The time at these speeds; None if encoding and decoding take no time."""
        return None if speeds is None else cls(speeds, endpoint, cores, kernel, log)

    def __init__(
        self,
        speeds: CodingSpeeds,
        endpoint: VirtualEndpoint,
        cores: Cores,
        kernel: Kernel,
        log: WorkerLog,
    ) -> None:
        self._speeds = speeds
        self._endpoint = endpoint
        self._cores = cores
        self._kernel = kernel
        self._log = log

    def encode(self, codec: Codec, nbytes: int) -> None:
        """Delay what is posted next."""
        begun = max(self._kernel.now, self._endpoint.busy_until)
        seconds = self._speeds.encode_seconds(codec, nbytes)
        self._endpoint.busy_until = begun + seconds
        self._log.time("encode", begun, seconds)

    async def settle(self) -> None:
        """Wait until everything is encoded."""
        remaining = self._endpoint.busy_until - self._kernel.now
        if remaining > 0:
            await passes(remaining)

    async def decode(self, codec: Codec, nbytes: int) -> None:
        """Hold a core for the time."""
        seconds = self._speeds.decode_seconds(codec, nbytes)
        begun = await self._cores.compute(self._endpoint.member, seconds)
        self._log.span("encode", begun)
