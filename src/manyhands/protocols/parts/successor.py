"""The start of a worker that was restarted, where every worker has a replica of its own.

The replica of its predecessor is lost. It asks another worker for one, the next rank first, and yet
another one if that one is lost meanwhile. The runtime tells the others of it afterwards, when it
asks for its first samples: until then no worker calls its server, which still has the initial
parameters. The state of its optimizer begins anew, as it does under strategies with servers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.endpoint import MembershipChanged, Pull
from manyhands.failure import StateLost
from manyhands.protocols.parts.pull_and_rest import answer

if TYPE_CHECKING:
    from collections.abc import Collection

    from manyhands.endpoint import Endpoint, Parameters, Replica


async def ask_another(
    replica: Replica, endpoint: Endpoint, pull: Pull, besides: Collection[str] = ()
) -> tuple[str, Parameters] | None:
    """Pull into the replica from another worker that can be reached; None if there is none.

    Args:
        replica: the worker's replica.
        endpoint: its endpoint.
        pull: the request.
        besides: servers that are not asked.

    Returns:
        The name of the server that answered, and its answer.
    """
    servers, rank = replica.servers, replica.rank
    others = [name for name in (*servers[rank + 1 :], *servers[:rank]) if name not in besides]
    # Asked anew for each attempt: peers are lost and return while this worker waits.
    while there := [name for name in others if endpoint.reaches(name)]:
        endpoint.post(there[0], pull, into=replica.parameters(0))
        try:
            return there[0], await answer(endpoint, there[0])
        except MembershipChanged:
            continue
    return None


async def copy_another(replica: Replica, endpoint: Endpoint) -> None:
    """Load the replica of another worker.

    Raises:
        StateLost: no other worker is left.
    """
    if await ask_another(replica, endpoint, Pull()) is None:
        raise StateLost
