"""References: the vectors that a server and a caller both have, for differences between them."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch


class References:
    """What the callers of a server have received from it and sent to it.

    A vector is never changed after it was stored, so that callers which have received the same
    share one. It is part of the state that a server's successor restores.
    """

    def __init__(self) -> None:
        self.last = 0
        """The number of the last answer."""
        self.revision, self.since = -1, 0
        """The revision of the shard that was answered with last, and the number of its first
        answer. Rounding is drawn from that number: a successor that begins in the middle of a
        revision encodes the rest as its predecessor did, which had encoded it once."""
        self.sent: defaultdict[str, dict[int, torch.Tensor]] = defaultdict(dict)
        """By caller and number of an answer, what the caller has after it: the bytes of a shard.
        It may have missed the latest."""
        self.held: dict[str, int] = {}
        """By caller, the number of the answer that it had when it made its last call."""
        self.received: dict[str, torch.Tensor] = {}
        """By caller, what it has sent, if it sends differences to that."""

    def begin_revision(self, revision: int) -> None:
        """Answer with the parameters of this revision from now on."""
        if self.revision != revision:
            self.revision, self.since = revision, self.last

    def acknowledge(self, caller: str, number: int) -> None:
        """Keep the answer that a caller has; it needs no earlier and no later one."""
        known = self.sent[caller].get(number)
        self.sent[caller] = {} if known is None else {number: known}
        self.held[caller] = number

    def forget(self, caller: str) -> None:
        """Free what belongs to a caller."""
        self.sent.pop(caller, None)
        self.held.pop(caller, None)
        self.received.pop(caller, None)

    def callers(self) -> list[str]:
        """All callers of which something is kept."""
        return list({**self.sent, **self.received})

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, object]]:
        """Tensors, each once, and plain numbers."""
        tensors: dict[str, torch.Tensor] = {}
        names: dict[int, str] = {}

        def named(vector: torch.Tensor) -> str:
            if id(vector) not in names:
                names[id(vector)] = f"reference {len(names)}"
                tensors[names[id(vector)]] = vector
            return names[id(vector)]

        sent = {
            caller: {str(number): named(vector) for number, vector in answers.items()}
            for caller, answers in self.sent.items()
        }
        received = {caller: named(vector) for caller, vector in self.received.items()}
        if not (self.last or received):
            return {}, {}
        facts = {"last": self.last, "sent": sent, "held": dict(self.held), "received": received}
        facts |= {"revision": self.revision, "since": self.since}
        return tensors, {"references": facts}

    def restore(self, tensors: Mapping[str, torch.Tensor], facts: Mapping[str, Any]) -> None:
        """Restore what `state` returned: the tensors by name, and the numbers of `references`."""
        self.last, self.held = facts["last"], dict(facts["held"])
        # Journals and checkpoints of earlier versions have neither.
        self.revision, self.since = facts.get("revision", -1), facts.get("since", self.last)
        for caller, answers in facts["sent"].items():
            self.sent[caller] = {int(number): tensors[name] for number, name in answers.items()}
        self.received = {caller: tensors[name] for caller, name in facts["received"].items()}
