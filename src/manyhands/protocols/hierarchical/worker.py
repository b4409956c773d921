"""The worker's side of a hierarchical strategy: compute for its island, and run errands for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import UNSET

from manyhands.endpoint import Change, Parameters, Pull, Push, Rest
from manyhands.protocols.parts.pull_and_rest import answer

if TYPE_CHECKING:
    from manyhands.endpoint import Endpoint, LeasedBatch, Replica


@dataclass(frozen=True)
class InnerWorker:
    """A worker of an island whose server takes steps itself and forwards its parameters."""

    replica: Replica
    endpoint: Endpoint
    own: str
    """The server of its island."""
    outer: str
    """The outer server."""

    async def work(self) -> None:
        """Step with the island; batches are committed after the next outer synchronisation."""
        replica, endpoint = self.replica, self.endpoint
        await self._join()
        alone: list[LeasedBatch] = []
        async for batch in replica.batches():
            if batch is None:
                replica.rests = True
                into = replica.parameters(0)
                endpoint.post(self.own, Rest(pauses=replica.pauses), into=into)
            else:
                if replica.rests:
                    await self._join()
                await replica.gradient(batch)
                update = replica.update(0) if batch.samples else None
                push = Push(
                    replica.versions[0],
                    batch.samples,
                    batch.dealt,
                    batch.total,
                    batch.mass,
                    unused=replica.unused(0) or UNSET,
                )
                endpoint.post(self.own, push, payload=update, into=replica.parameters(0))
                alone.append(batch)
            applied, in_sync = await self._receive()
            if batch is not None and not applied:
                replica.forgo(alone.pop())
            if in_sync:
                # Only when islands are in sync: until then these updates are on this island alone,
                # and lost if all of its workers are.
                replica.commit(*alone)
                alone.clear()
            if batch is None:
                # If the other workers are lost, the island's server has no carrier to report this.
                endpoint.post(self.outer, Rest(pauses=replica.pauses))
                await answer(endpoint, self.outer)
        # A successor may still carry its island's last round, which must not wait for this worker.
        endpoint.post(self.outer, Rest())
        await answer(endpoint, self.outer)

    async def _join(self) -> None:
        self.endpoint.post(self.own, Pull(), into=self.replica.parameters(0))
        await self._receive()
        self.replica.rests = False
        self.replica.adopt()

    async def _receive(self) -> tuple[bool, bool]:
        """Receive the island's answer and run its errand.

        Returns:
            Whether this worker's update is a part of the island's parameters, and whether islands
            are in sync.
        """
        replica, endpoint = self.replica, self.endpoint
        said = await answer(endpoint, self.own)
        applied = said.applied
        if said.errand not in ("", "done"):
            # The island's server adds a difference to what it has, so what it gave must be kept
            # while the outer server's parameters arrive in its place.
            replica.lay_aside()
            await self._carry(said)
            back = Change(said.version, errand=said.errand)
            endpoint.post(self.own, back, payload=replica.moved(0), into=replica.parameters(0))
            said = await answer(endpoint, self.own)
        replica.versions[0] = said.version
        return applied, said.errand == "done"

    async def _carry(self, said: Parameters) -> None:
        """Take the island's parameters to the outer server, and receive the shared ones."""
        parameters = self.replica.parameters(0)
        if said.errand == "join":
            self.endpoint.post(self.outer, Pull(), into=parameters)
            await answer(self.endpoint, self.outer)
        elif said.samples or said.number or said.errand == "meet":
            push = Push(0, said.samples)
            self.endpoint.post(self.outer, push, payload=parameters, into=parameters)
            await answer(self.endpoint, self.outer)


@dataclass(frozen=True)
class OuterExchange:
    """A worker of an island whose server forwards the sum of its gradients."""

    replica: Replica
    endpoint: Endpoint
    own: str
    """The server of its island."""
    outer: str
    """The outer server."""

    async def work(self) -> None:
        """For every batch: compute, push, and receive the parameters after the outer step."""
        replica, endpoint = self.replica, self.endpoint
        await self._join()
        replica.adopt()
        async for batch in replica.batches():
            if batch is None:
                await self._rest()
                continue
            if replica.rests:
                await self._join()
            await replica.gradient(batch)
            update = replica.update(0) if batch.samples else None
            push = Push(
                replica.versions[0],
                batch.samples,
                batch.dealt,
                mass=batch.mass,
                unused=replica.unused(0) or UNSET,
            )
            endpoint.post(self.own, push, payload=update, into=replica.parameters(0))
            said = await answer(endpoint, self.own)
            applied = said.applied
            if said.errand == "meet":
                said = await self._carry(said)
            replica.versions[0] = said.version
            if applied and said.applied:
                replica.commit(batch)
            else:
                replica.forgo(batch)

    async def _join(self) -> None:
        """Join the outer server's rounds first, so that no step is missed, then the island's."""
        room, said = self.replica.parameters(0), Parameters(0, errand="join")
        # Outer server first: in the other order it could take a step without an island that has
        # just returned (`docs/decisions/0018-islands.md`). The island's server asks again if a sum
        # was lost meanwhile.
        while said.errand == "join":
            self.endpoint.post(self.outer, Pull(number=said.number), into=room)
            there = await answer(self.endpoint, self.outer)
            here = Change(there.version, errand="join", number=said.number)
            self.endpoint.post(self.own, here, payload=room, into=room)
            said = await answer(self.endpoint, self.own)
        self.replica.versions[0] = said.version
        self.replica.rests = False

    async def _rest(self) -> None:
        self.replica.rests = True
        for server in (self.own, self.outer):
            self.endpoint.post(server, Rest(pauses=self.replica.pauses))
            await answer(self.endpoint, server)

    async def _carry(self, said: Parameters) -> Parameters:
        """Take the island's sum to the outer server, and return the parameters after its step."""
        room = self.replica.parameters(0)
        mass = 0.0 if said.mass == said.samples else said.mass
        about = (said.version, said.samples, said.dealt)
        push = Push(*about, mass=mass, number=said.number, unused=said.unused)
        payload = room if said.samples else None
        self.endpoint.post(self.outer, push, payload=payload, into=room)
        there = await answer(self.endpoint, self.outer)
        back = Change(there.version, errand="meet")
        self.endpoint.post(self.own, back, payload=room, into=room)
        return await answer(self.endpoint, self.own)
