"""What workers of several protocols do alike: pull, rest, take a mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.endpoint import MembershipChanged, Parameters, Pull, Rest
from manyhands.protocols.protocol import StrategyProtocol

if TYPE_CHECKING:
    from manyhands.endpoint import Endpoint, Replica


class Centred(StrategyProtocol):
    """A protocol whose shared state is with servers, a part each."""

    async def refresh(self, replica: Replica, endpoint: Endpoint) -> list[int]:
        """Pull from every server."""
        for server, name in enumerate(replica.servers):
            endpoint.post(name, Pull(), into=replica.parameters(server))
        for server, name in enumerate(replica.servers):
            replica.versions[server] = (await answer(endpoint, name)).version
        replica.rests = False
        return list(replica.versions)


async def rest(replica: Replica, endpoint: Endpoint) -> None:
    """Tell all servers that nobody need wait for this worker at present.

    They go on without it, so it has to pull before it computes again.
    """
    replica.rests = True
    for name in replica.servers:
        endpoint.post(name, Rest())
    for name in replica.servers:
        await answer(endpoint, name)


async def answer(endpoint: Endpoint, server: str) -> Parameters:
    """Receive a server's answer."""
    said = await endpoint.receive(server)
    if not isinstance(said, Parameters):
        raise TypeError(f"{server} answered with {type(said).__name__}, not with parameters")
    return said


async def take_mean(replica: Replica, endpoint: Endpoint) -> list[Parameters]:
    """Have the mean of all whole replicas that can be reached; what their servers said."""
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
            replica.draw(1 / (len(answers) + 1))
        answers.append(said)
    return answers
