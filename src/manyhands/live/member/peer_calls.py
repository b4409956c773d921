"""Calls of a worker to peers that may be lost and return.

The coordinator's notices of losses and returns arrive in another thread. The worker's thread takes
note of them at certain points only: when it asks whether a peer can be reached, and while it waits
for an answer. So between two of these points its view of the peers does not change, and what it
encodes for a peer is sent to the incarnation that it was encoded for.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from manyhands.endpoint import MembershipChanged
from manyhands.wire.leasing import Fence

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Sequence

    from manyhands.transport.caller import Caller
    from manyhands.wire.leasing import Rejoined


class PeerCalls:
    """The peers of a worker, and how many of its calls to each of them have no answer.

    Args:
        caller: calls the peers' servers.
        notices: losses and returns, in order; filled by another thread.
        host: the name of this host, whose servers stay where they are.
        known: losses and returns before this worker was started.
    """

    def __init__(
        self,
        caller: Caller,
        notices: deque[Fence | Rejoined],
        host: str,
        known: Sequence[Fence | Rejoined] = (),
    ) -> None:
        self._caller = caller
        self._notices = notices
        self._host = host
        self._gone: set[str] = set()
        """The servers of lost workers."""
        self._lives: dict[str, int] = {}
        """By server that was restarted, its incarnation."""
        self._open: Counter[str] = Counter()
        """By server, calls whose answers were not received."""
        self._vain: Counter[str] = Counter()
        """By server, calls to a lost incarnation whose answers were not awaited yet."""
        self.on_loss: Callable[[str], None] = lambda _: None
        """Called with the name of a server that is lost."""
        for notice in known:
            self._note(notice)

    def look(self) -> None:
        """Take note of losses and returns."""
        while self._notices:
            self._note(self._notices.popleft())

    def _note(self, notice: Fence | Rejoined) -> None:
        name = notice.name.replace("worker", "server")
        if isinstance(notice, Fence):
            # A notice that was known when this worker was started comes a second time.
            if notice.least > self._lives.get(name, 0):
                self._lose(name)
        elif notice.life > self._lives.get(name, 0):
            # Also if no loss was noted: a worker that has just started knows the last notice about
            # each peer only, and its calls to the predecessor have no answer.
            self._lose(name)
            self._lives[name] = notice.life
            self._gone.discard(name)
            address = notice.address if notice.host != self._host else ""
            self._caller.reconnect(name, address)
            # From here on: the successor ignores calls from before, which were meant for its
            # predecessor (`docs/decisions/0081-peers-that-return.md`).
            self._caller.epoch = max(self._caller.epoch, notice.epoch)

    def _lose(self, name: str) -> None:
        self._gone.add(name)
        # Each of these calls is still awaited once, in order, and each wait has to raise.
        self._vain[name] += self._open.pop(name, 0)
        # After the open calls were counted: nothing answers them any more, and a late answer is not
        # read.
        self._caller.give_up(name)
        self.on_loss(name)

    def reaches(self, name: str) -> bool:
        """Whether a server is not known to be lost."""
        self.look()
        return name not in self._gone

    def begin(self, name: str) -> bool:
        """Count a call; returns whether it is to be sent."""
        # Counted, although nothing is sent: the protocol awaits an answer to every call that it
        # makes.
        if name in self._gone:
            self._vain[name] += 1
            return False
        self._open[name] += 1
        return True

    def check(self, name: str) -> None:
        """Raise MembershipChanged if the oldest call to a server has no answer any more."""
        self.look()
        if self._vain[name]:
            self._vain[name] -= 1
            raise MembershipChanged(f"{name} is lost")

    def end(self, name: str) -> None:
        """Note that the answer to a call was received."""
        self._open[name] -= 1
