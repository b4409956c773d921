"""Streaming synchronisation: fragments of the parameters are exchanged in turn, while computing.

A fragment has servers of its own, so each of its rounds is independent of the others'. All workers
contribute to rounds in one order: by the number of the round, then by the fragment. So there is no
deadlock: of all rounds that are not complete, no worker waits for another one before it has
contributed to the first. With a quorum a worker's contribution may come too late, and that
fragment then lags behind the others: before it waits for one of these, it contributes to the rounds
before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from manyhands.endpoint import Push
from manyhands.protocols.parts.pull_and_rest import ServerBased, answer, rest

if TYPE_CHECKING:
    from manyhands.endpoint import Endpoint, LeasedBatch, Replica

MIX = 0.5
"""How much of a fragment's local steps during an exchange is replaced by the result; 1 − α."""


@dataclass
class StreamedFragment:
    """A worker's view of one fragment."""

    servers: range
    """The servers of the fragment."""
    round: int = 0
    """The number of the round that the worker contributes to next."""
    samples: int = 0
    """Samples that the worker was trained on since its last contribution."""
    mass: float = 0.0
    """Their weight in a mean."""
    pushed: int = 0
    """Steps of the worker up to its last contribution."""
    settled: int = 0
    """Steps of the worker up to the last contribution that was answered."""
    is_under_way: bool = False
    """Whether the last contribution has not been answered yet."""

    @property
    def place(self) -> tuple[int, int]:
        """The round that it is in, among those of all fragments.

        The one of its last contribution if that is under way, and otherwise the next one.
        """
        return self.round - self.is_under_way, self.servers[0]


class Streamer:
    """A worker that synchronises one fragment after the other.

    Args:
        replica: the worker's replica. Its second buffer holds a fragment's parameters of the last
            answer (if changes are sent), or what is under way.
        endpoint: its endpoint.
        every: steps in which each fragment is synchronised once.
        fragments: number of fragments.
        overlap: steps after which a result is merged.
        changes: whether the changes since the last answer are sent, and not the parameters.
    """

    def __init__(
        self,
        replica: Replica,
        endpoint: Endpoint,
        *,
        every: int,
        fragments: int,
        overlap: int,
        changes: bool,
    ) -> None:
        self._replica = replica
        self._endpoint = endpoint
        self._every = every
        self._overlap = overlap
        self._changes = changes
        each = len(replica.servers) // fragments
        self._fragments = [
            StreamedFragment(range(at * each, (at + 1) * each)) for at in range(fragments)
        ]
        self._moments = {(at + 1) * every // fragments for at in range(fragments)}
        """Steps of an interval, from 1 on, after which a fragment is sent."""
        self._step = 0
        """Steps of the worker."""
        self._alone = 0
        """Steps of the worker before it was last brought to the shared parameters."""
        self._batches: list[tuple[int, LeasedBatch]] = []
        """Batches that are not committed yet, each with its step."""
        self._refused = 0
        """Steps of the worker up to the last contribution that was not applied."""

    async def run(self, protocol: ServerBased) -> None:
        """Train until the run is over."""
        await self._begin(protocol)
        rested = False
        async for batch in self._replica.batches():
            if batch is None:
                if self._batches:
                    await self._finish()
                elif not self._replica.rests:
                    # Also after an evaluation, for which it pulled: servers wait for it since then.
                    await rest(self._replica, self._endpoint)
                rested = True
                continue
            if rested:
                await self._begin(protocol)
                rested = False
            await self._replica.gradient(batch)
            self._replica.apply(batch)
            await self._synchronise(batch)

    async def _begin(self, protocol: ServerBased) -> None:
        """Start from the shared parameters."""
        await protocol.refresh(self._replica, self._endpoint)
        self._replica.adopt()
        self._alone = self._step
        for fragment in self._fragments:
            fragment.round = self._replica.versions[fragment.servers[0]]
            if self._changes:
                for server in fragment.servers:
                    self._replica.lay_aside(server)

    async def _synchronise(self, batch: LeasedBatch) -> None:
        """Merge the results that are due, and send the next fragment if it is time.

        With a quorum, servers of other fragments may be several rounds ahead of this worker, so a
        fragment that is under way may be the one with the fewest rounds: it is not sent again. One
        is always free, because an overlap is shorter than an interval.
        """
        self._step += 1
        self._batches.append((self._step, batch))
        for fragment in self._fragments:
            fragment.samples += batch.samples
            fragment.mass += batch.mass or batch.samples
        await self._merge(self._step - self._overlap)
        if (self._step - self._alone - 1) % self._every + 1 in self._moments:
            free = [one for one in self._fragments if not one.is_under_way]
            self._send(min(free, key=lambda one: one.place))
            await self._merge(self._step - self._overlap)
        self._commit()

    async def _finish(self) -> None:
        """Bring all fragments to the shared parameters, and rest: there are no samples at present.

        No server waits for this worker any more, while it waits for their answers. Also a fragment
        without samples is sent, as an empty contribution.
        """
        await self._merge(self._step)
        self._step += 1
        for fragment in self._fragments:
            self._send(fragment, rests=True)
        # Before the answers are awaited: servers wait for this worker no more, so it may await them
        # in any order.
        self._replica.rests = True
        await self._merge(self._step)
        self._commit()

    def _send(self, fragment: StreamedFragment, *, rests: bool = False) -> None:
        for server in fragment.servers:
            mass = 0.0 if fragment.mass == fragment.samples else fragment.mass
            read = self._replica.versions[server]
            message = Push(read, fragment.samples, mass=mass, rests=rests)
            if self._changes:
                self._replica.moved(server)
            else:
                self._replica.lay_aside(server)
            beside = self._replica.beside(server)
            payload = beside if fragment.samples else None
            self._endpoint.post(self._replica.servers[server], message, payload, into=beside)
        fragment.samples, fragment.mass = 0, 0.0
        fragment.pushed, fragment.is_under_way = self._step, True
        fragment.round += 1

    async def _merge(self, until: int) -> None:
        """Receive the results of what was sent up to a step, and merge each into the replica.

        Without a step in between the result replaces the fragment; otherwise half of it, as in the
        paper.
        """
        due = [one for one in self._fragments if one.is_under_way and one.pushed <= until]
        for fragment in sorted(due, key=lambda one: one.pushed):
            # No round waits for a worker that rests.
            while not self._replica.rests and (
                before := [one for one in self._fragments if one.place < fragment.place]
            ):
                first = min(before, key=lambda one: one.place)
                if not first.is_under_way:
                    self._send(first)
                await self._settle(first)
            if fragment.is_under_way:
                await self._settle(fragment)

    async def _settle(self, fragment: StreamedFragment) -> None:
        """Receive the result of a fragment's last contribution, and merge it."""
        for server in fragment.servers:
            said = await answer(self._endpoint, self._replica.servers[server])
            self._replica.versions[server] = said.version
            if not said.applied:
                self._refused = fragment.pushed
            self._replica.draw(1.0 if self._step == fragment.pushed else MIX, server)
        # With a quorum the servers may be several rounds ahead: a count of this worker's own
        # contributions would fall behind.
        fragment.round = self._replica.versions[fragment.servers[0]]
        fragment.settled, fragment.is_under_way = fragment.pushed, False
        self._replica.adopt()

    def _commit(self) -> None:
        """Commit the batches that are part of all fragments."""
        settled = min(fragment.settled for fragment in self._fragments)
        done = [(step, batch) for step, batch in self._batches if step <= settled]
        # Steps are settled in order, because all fragments are needed for a batch: those that are
        # done come first.
        self._batches = self._batches[len(done) :]
        self._replica.forgo(*(batch for step, batch in done if step <= self._refused))
        self._replica.commit(*(batch for step, batch in done if step > self._refused))
