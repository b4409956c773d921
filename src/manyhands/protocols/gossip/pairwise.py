"""Asynchronous gossip (AD-PSGD): a worker and one neighbour average their replicas."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from manyhands.endpoint import Arrived, Change, MembershipChanged, Parameters, Pull, Push
from manyhands.protocols.actions import Action, Add, Answer, Call, Forget, Move
from manyhands.protocols.parts.pull_and_rest import answer

if TYPE_CHECKING:
    from manyhands.endpoint import Endpoint, LeasedBatch, Replica
    from manyhands.protocols.gossip.lockstep import GossipState
    from manyhands.protocols.gossip.topologies import Graph


async def average_with_one(
    neighbours: Graph, replica: Replica, endpoint: Endpoint, batch: LeasedBatch, read: int
) -> int:
    """x_i, x_j ← (x_i + x_j)/2, then x_i ← x_i − η·∇f(x_i before); returns the new version.

    The replica is sent before the gradient is computed, and the neighbour's is received after it.
    """
    ranks = neighbours(replica.rank, replica.terms.workers, endpoint.rng.getrandbits(30))
    there = [replica.servers[rank] for rank in ranks if endpoint.reaches(replica.servers[rank])]
    if not there:
        await replica.gradient(batch)
        return await step(replica, endpoint, batch, read)
    other = there[endpoint.rng.randrange(len(there))]
    payload, into = replica.parameters(0), replica.beside(0)
    # Before the gradient, so that the exchange takes place meanwhile; both sides average the
    # replicas from before this step.
    endpoint.post(other, Push(read, batch.samples), payload=payload, into=into)
    await replica.gradient(batch)
    try:
        await answer(endpoint, other)
    except MembershipChanged:
        return await step(replica, endpoint, batch, read)
    # Only now may the neighbour forget the copy with which it would repeat its answer.
    endpoint.post(other, Arrived())
    replica.trade(0.5)
    replica.apply(batch)
    replica.compare(1.0)
    read = await change(replica, endpoint, read)
    with suppress(MembershipChanged):
        await answer(endpoint, other)
    return read


async def step(replica: Replica, endpoint: Endpoint, batch: LeasedBatch, read: int) -> int:
    """Take a local step, on top of the averages that other workers made meanwhile."""
    replica.lay_aside()
    replica.apply(batch)
    replica.compare(1.0)
    return await change(replica, endpoint, read)


async def change(replica: Replica, endpoint: Endpoint, read: int) -> int:
    """Add the update to this worker's replica on its own server, which may have changed since."""
    own = replica.servers[replica.rank]
    payload, into = replica.update(0), replica.parameters(0)
    endpoint.post(own, Change(read), payload=payload, into=into)
    return (await answer(endpoint, own)).version


def decide(state: GossipState, call: Call) -> tuple[GossipState, list[Action]]:
    """Handle a call on a worker's own server: both replicas move halfway to each other."""
    match call.message:
        case Push():
            now = replace(state, version=state.version + 1)
            # The answer has the replica from before: the caller computes its own half.
            back = Answer(call, Parameters(now.version), remember=True)
            return now, [Add(call, 1.0), back, Move(by=0.5, over=1.0)]
        case Arrived():
            done = Answer(call, Parameters(state.version), parameters=False)
            return state, [Forget(call.sender), done]
        case Pull():
            return state, [Answer(call, Parameters(state.version))]
        case _:
            return state, []


def repeat(state: GossipState, call: Call) -> Answer:
    """The answer to a replica that was received before: the same replica as in the first."""
    return Answer(call, Parameters(state.version), parameters=call.room, recall=True)
