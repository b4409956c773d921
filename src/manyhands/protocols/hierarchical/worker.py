"""What a worker does in a hierarchy: compute for its island, and carry what its server gives it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from manyhands.endpoint import Change, Parameters, Pull, Push, Rest
from manyhands.protocols.parts.pull_and_rest import answer

if TYPE_CHECKING:
    from manyhands.endpoint import Endpoint, LeasedBatch, Replica


@dataclass(frozen=True)
class InnerWorker:
    """A worker of an island that steps by itself, and carries its parameters to the others."""

    replica: Replica
    endpoint: Endpoint
    own: str
    """The server of its island."""
    between: str

    async def work(self) -> None:
        """Step with the island; what was made counts when the islands have met."""
        replica, endpoint = self.replica, self.endpoint
        await self._join()
        alone: list[LeasedBatch] = []
        async for batch in replica.batches():
            if batch is None:
                replica.rests = True
                endpoint.post(self.own, Rest(), into=replica.parameters(0))
            else:
                if replica.rests:
                    await self._join()
                await replica.gradient(batch)
                update = replica.update(0) if batch.samples else None
                push = Push(replica.versions[0], batch.samples, batch.dealt, total=batch.total)
                endpoint.post(self.own, push, payload=update, into=replica.parameters(0))
                alone.append(batch)
            if await self._hear():
                replica.commit(*alone)
                alone.clear()
            if batch is None:
                # Should the rest of the island be lost, its own server could send nobody to say so.
                endpoint.post(self.between, Rest())
                await answer(endpoint, self.between)

    async def _join(self) -> None:
        self.endpoint.post(self.own, Pull(), into=self.replica.parameters(0))
        await self._hear()
        self.replica.rests = False
        self.replica.adopt()

    async def _hear(self) -> bool:
        """Hear the island's server and go where it says; whether the islands have met by then."""
        replica, endpoint = self.replica, self.endpoint
        said = await answer(endpoint, self.own)
        if said.errand not in ("", "done"):
            replica.lay_aside()
            await self._carry(said)
            back = Change(said.version, errand=said.errand)
            endpoint.post(self.own, back, payload=replica.moved(0), into=replica.parameters(0))
            said = await answer(endpoint, self.own)
        replica.versions[0] = said.version
        return said.errand == "done"

    async def _carry(self, said: Parameters) -> None:
        """Carry the island's parameters to the others, and bring back what all came to."""
        parameters = self.replica.parameters(0)
        if said.errand == "join":
            self.endpoint.post(self.between, Pull(), into=parameters)
            await answer(self.endpoint, self.between)
        elif said.samples or said.errand == "meet":
            push = Push(0, said.samples)
            self.endpoint.post(self.between, push, payload=parameters, into=parameters)
            await answer(self.endpoint, self.between)


@dataclass(frozen=True)
class OuterExchange:
    """A worker of an island that sums gradients, and carries their sum to the others."""

    replica: Replica
    endpoint: Endpoint
    own: str
    """The server of its island."""
    between: str

    async def work(self) -> None:
        """Compute, push, and have the parameters after the step of all islands."""
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
            push = Push(replica.versions[0], batch.samples, batch.dealt)
            endpoint.post(self.own, push, payload=update, into=replica.parameters(0))
            said = await answer(endpoint, self.own)
            if said.errand == "meet":
                said = await self._carry(said)
            replica.versions[0] = said.version
            if said.applied:
                replica.commit(batch)
            else:
                replica.forgo(batch)

    async def _join(self) -> None:
        """Be waited for between the islands first, so that nothing is missed, and then here."""
        room, said = self.replica.parameters(0), Parameters(0, errand="join")
        while said.errand == "join":
            self.endpoint.post(self.between, Pull(number=said.number), into=room)
            there = await answer(self.endpoint, self.between)
            here = Change(there.version, errand="join", number=said.number)
            self.endpoint.post(self.own, here, payload=room, into=room)
            said = await answer(self.endpoint, self.own)
        self.replica.versions[0] = said.version
        self.replica.rests = False

    async def _rest(self) -> None:
        self.replica.rests = True
        for server in (self.own, self.between):
            self.endpoint.post(server, Rest())
            await answer(self.endpoint, server)

    async def _carry(self, said: Parameters) -> Parameters:
        """Carry the island's sum to the others, and bring back the parameters after the step."""
        room = self.replica.parameters(0)
        push = Push(said.version, said.samples, said.dealt, number=said.number)
        payload = room if said.samples else None
        self.endpoint.post(self.between, push, payload=payload, into=room)
        there = await answer(self.endpoint, self.between)
        back = Change(there.version, errand="meet")
        self.endpoint.post(self.own, back, payload=room, into=room)
        return await answer(self.endpoint, self.own)
