"""Exchanges that several protocols share: pull from servers, rest, average replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.endpoint import MembershipChanged, Parameters, Pull, Rest
from manyhands.protocols.protocol import StrategyProtocol

if TYPE_CHECKING:
    from manyhands.endpoint import Endpoint, Replica


class ServerBased(StrategyProtocol):
    """A protocol whose shared parameters are on servers, one shard each."""

    async def refresh(self, replica: Replica, endpoint: Endpoint) -> list[int]:
        """Pull from every server."""
        for server, name in enumerate(replica.servers):
            # To all servers before the first answer is awaited, so that the latencies of their
            # links do not add up.
            endpoint.post(name, Pull(), into=replica.parameters(server))
        for server, name in enumerate(replica.servers):
            replica.versions[server] = (await answer(endpoint, name)).version
        # After the answers: only then do all servers count it as present.
        replica.rests = False
        return list(replica.versions)


async def rest(replica: Replica, endpoint: Endpoint) -> None:
    """Tell all servers not to wait for this worker until it pulls again.

    At the end of an epoch one worker has the last samples and the others have none: without this
    message the last round would never be complete (`docs/decisions/0017-rounds-and-rests.md`).
    Servers continue without it, so the worker has to pull before it computes again. If all workers
    pause, a round that begins afterwards waits for all of them.
    """
    replica.rests = True
    for name in replica.servers:
        endpoint.post(name, Rest(pauses=replica.pauses))
    for name in replica.servers:
        await answer(endpoint, name)


async def answer(endpoint: Endpoint, server: str) -> Parameters:
    """Receive a server's answer."""
    said = await endpoint.receive(server)
    if not isinstance(said, Parameters):
        raise TypeError(f"expected Parameters from {server}, got {type(said).__name__}")
    return said


async def take_mean(replica: Replica, endpoint: Endpoint) -> list[Parameters]:
    """Average all reachable replicas into this one; return the answers of their servers."""
    answers: list[Parameters] = []
    for name in replica.servers:
        if not endpoint.reaches(name):
            continue
        into = replica.beside(0) if answers else replica.parameters(0)
        endpoint.post(name, Pull(), into=into)
        try:
            said = await answer(endpoint, name)
        except MembershipChanged:
            continue
        if answers:
            # Only after the answer is there: a peer that is lost while it answers must leave no
            # trace in the mean.
            replica.draw(1 / (len(answers) + 1))
        answers.append(said)
    return answers
