# ruff: noqa: ARG002, D102 - `Law` has all events, and documents them
"""Versions and staleness are those that servers and workers say."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from manyhands.endpoint import Parameters, Push, Rest
from manyhands.protocols import USES_PAYLOAD
from manyhands.testing.laws.law import BrokenLawError, Law

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from manyhands.endpoint import Custom, Said
    from manyhands.leasing.leases import Lease
    from manyhands.protocols import Action, Call, ServerState
    from manyhands.testing.cases.case import Case
    from manyhands.testing.laws.law import Life
    from manyhands.virtual import World


class ReportedVersions(Law):
    """An answer that has parameters says the version at which the server is.

    If parameters are in shared memory, every answer does, except to a worker that rests: it reads
    them when it takes part again.
    """

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._versions: Counter[int] = Counter()
        self._rests: set[tuple[int, str, int]] = set()

    def decided(
        self,
        server: int,
        before: ServerState,
        call: Call,
        payload: NDArray[np.float64] | None,
        after: ServerState,
        actions: Sequence[Action],
    ) -> None:
        self._versions[server] = after.version
        if isinstance(call.message, Rest):
            self._rests.add((server, call.sender, call.number))

    def left(
        self,
        server: int,
        worker: str,
        before: ServerState,
        after: ServerState,
        actions: Sequence[Action],
    ) -> None:
        self._versions[server] = after.version

    def began_anew(self, server: int, x: NDArray[np.float64]) -> None:
        self._versions[server] = 0

    def replied(
        self,
        server: int,
        call: tuple[str, int],
        message: Parameters | Custom,
        payload: NDArray[np.float64] | None,
    ) -> None:
        reads = self.case.protocol.shared_memory and (server, *call) not in self._rests
        tells = payload is not None or reads
        if not isinstance(message, Parameters) or not tells:
            return
        if message.version != self._versions[server]:
            raise BrokenLawError(
                f"server-{server} is at version {self._versions[server]}, and says "
                f"{message.version} in its answer to call {call[1]} of {call[0]}"
            )


class RecordedStaleness(Law):
    """A recorded staleness is the versions between what was computed on and now.

    Staleness that a protocol does not record is not compared, nor that of a worker whose parameters
    are in shared memory or come from several servers with all parameters each.
    """

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._sharded = (
            case.servers == case.shards
            and not case.protocol.peer_servers
            and not case.protocol.shared_memory
        )
        self._lies: dict[tuple[str, int], int | None] = {}
        """By worker and server, the version of the parameters that the worker has; None if the
        protocol has messages of its own for it."""
        self._used: dict[tuple[str, int], int | None] = {}
        """By worker and server, the version that its last gradient was computed on."""
        self._posted: Counter[tuple[str, int]] = Counter()
        self._reads: dict[tuple[str, int, int], int] = {}
        """By call, the version that its update was computed on."""
        self._seen: dict[int, Counter[int]] = {}

    def took(
        self,
        life: Life,
        server: int,
        message: Parameters | Custom,
        payload: NDArray[np.float64] | None,
        *,
        beside: bool,
    ) -> None:
        if payload is not None and not beside:
            version = message.version if isinstance(message, Parameters) else None
            self._lies[life.sender, server] = version

    def computed(self, life: Life, lease: Lease, x: NDArray[np.float64]) -> None:
        for server in range(self.case.servers if self._sharded else 0):
            key = (life.sender, server)
            if key not in self._lies:
                raise BrokenLawError(
                    f"{life.sender} computes, and has not received the parameters of "
                    f"server-{server}: pull them first (await self.refresh(replica, endpoint))"
                )
            self._used[key] = self._lies[key]

    def posted(
        self, life: Life, server: int, message: Said, payload: NDArray[np.float64] | None
    ) -> None:
        self._posted[life.sender, server] += 1
        if not isinstance(message, Push) or not self._sharded:
            return
        number = self._posted[life.sender, server]
        read = (self._used if message.samples else self._lies).get((life.sender, server))
        self.compare(life, message, read)
        if read is not None:
            self._reads[life.sender, server, number] = read

    def compare(self, life: Life, message: Push, read: int | None) -> None:
        """Compare what a worker says with the version that it computed on; None for none yet."""

    def decided(
        self,
        server: int,
        before: ServerState,
        call: Call,
        payload: NDArray[np.float64] | None,
        after: ServerState,
        actions: Sequence[Action],
    ) -> None:
        for action in actions:
            if not isinstance(action, USES_PAYLOAD) or action.staleness is None:
                continue
            read = self._reads.get((call.sender, server, call.number))
            if read is not None and action.staleness != before.version - read:
                raise BrokenLawError(
                    f"{call} is {before.version - read} versions stale, and {action.staleness} is "
                    "recorded"
                )
            self._seen.setdefault(server, Counter())[action.staleness] += 1

    def ended(self, world: World) -> None:
        for number, server in enumerate(world._servers.values()):
            told = server._log.recorder._staleness
            seen = self._seen.get(number, Counter())
            if told != seen:
                raise BrokenLawError(f"server-{number} recorded {seen}, and its trace says {told}")


class ExactStaleness(RecordedStaleness):
    """As `RecordedStaleness`; and a push says the version that its update was computed on."""

    def compare(self, life: Life, message: Push, read: int | None) -> None:
        if message.version != read:
            raise BrokenLawError(
                f"{life.sender} computed on version {read}, and says {message.version}"
            )


class Fresh(Law):
    """A push is decided in the version that it was computed on: there is no staleness."""

    def decided(
        self,
        server: int,
        before: ServerState,
        call: Call,
        payload: NDArray[np.float64] | None,
        after: ServerState,
        actions: Sequence[Action],
    ) -> None:
        if isinstance(call.message, Push) and call.message.version != before.version:
            raise BrokenLawError(f"{call} reached server-{server} in version {before.version}")
