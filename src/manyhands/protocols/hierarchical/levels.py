"""What a hierarchy may be made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.protocols.averaging import Meeting
from manyhands.protocols.synchronous import Synchronous

if TYPE_CHECKING:
    from manyhands.notation import Value


def check_levels(islands: int, inner: Value, outer: Value) -> None:
    """Check that a hierarchy can be made of these.

    Raises:
        ValueError: these do not go together; the message names what does.
    """
    if islands < 1:
        raise ValueError(f"islands must be 1 or more, not {islands}")
    if not isinstance(inner, Synchronous):
        raise ValueError(  # noqa: TRY004 - what is wrong is the value
            f"inner={inner}: the workers of an island meet at its server, which has to be "
            f"synchronous(). {_instead(islands, outer)}"
        )
    if not isinstance(outer, Synchronous | Meeting):
        raise ValueError(  # noqa: TRY004 - as above
            f"outer={outer}: an island passes on its parameters after every so many steps, to "
            "averaging(), local_sgd() or diloco(), or the sum of its gradients in every step, to "
            "synchronous(). Other strategies do not wait for all islands, or have no server"
        )
    for name, level in (("inner", inner), ("outer", outer)):
        if level.servers != 1:
            raise ValueError(
                f"{name}={level} has {level.servers} servers, which would meet at different "
                "times when a worker is lost: leave it at servers=1 and have more islands"
            )


def _instead(islands: int, outer: Value) -> str:
    if isinstance(outer, Synchronous):
        return "With collectives, one step with the mean of all gradients is allreduce()"
    return (
        "With N workers on each island, collectives within them and meetings between them are "
        f"hybrid(data={islands}, together=N, outer={outer})"
    )
