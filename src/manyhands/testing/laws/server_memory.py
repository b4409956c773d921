"""What a server knows: a crash must not change it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from manyhands.testing.laws.law import BrokenLawError, values

if TYPE_CHECKING:
    from manyhands.protocols import ServerState
    from manyhands.virtual.server import Server


@dataclass(frozen=True)
class ServerMemory:
    """What a crash of a server must not change."""

    state: ServerState
    heard: dict[str, int]
    unanswered: set[tuple[str, int]]
    numbers: dict[str, object]
    tensors: dict[str, bytes]

    @classmethod
    def of(cls, server: Server) -> ServerMemory:
        """What a server knows now."""
        tensors, numbers = server.holder.state()
        stored = {name: values(one).tobytes() for name, one in tensors.items()}
        # Which callers share a reference is no part of what is known.
        vectors = {name: stored.pop(name) for name in [*stored] if name.startswith("reference ")}
        known: Any = numbers.pop("references", {})
        for sender, answers in known.get("sent", {}).items():
            for number, name in answers.items():
                stored[f"answer {number} to {sender}"] = vectors[name]
        for sender, name in known.get("received", {}).items():
            stored[f"the state of {sender}"] = vectors[name]
        numbers["references"] = known.get("last"), known.get("held")
        return cls(server.state, {**server._heard}, {*server._open}, numbers, stored)

    def compare(self, now: ServerMemory, server: str) -> None:
        """Raise an error if a successor knows something else."""
        for name in ("state", "heard", "unanswered", "numbers", "tensors"):
            before, after = getattr(self, name), getattr(now, name)
            if name == "heard":
                # Calls that changed nothing are not in the journal.
                before = {one: max(number, before.get(one, 0)) for one, number in after.items()}
                after = {one: max(number, before[one]) for one, number in after.items()}
            if before == after:
                continue
            if name == "tensors":
                names = {**before, **after}
                before = after = sorted(one for one in names if before.get(one) != after.get(one))
            raise BrokenLawError(
                f"{server} crashed with {name} {before}, and its successor continues with {after}",
                law="Recovery",
            )
