"""Watch over the heartbeats of workers and servers: warnings of those that delay a run, their end.

It decides with the pure functions of `manyhands.leasing.membership`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.leasing.membership import overdue, suspects
from manyhands.wire.leasing import Eject

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping

    from manyhands.leasing.membership import Member, Patience, Sign, Suspect
    from manyhands.trace import Recorder
    from manyhands.transport.control import Hub

SILENCE = 3.5
"""Seconds without a heartbeat after which a warning names the process: within 5 s of its loss."""
STALL = 10.0
"""Seconds of waiting in a collective after which a warning names the workers that are awaited."""
STILL = 20.0
"""Seconds without progress after which a warning names the process, if no step took as long."""
REPEAT = 20.0
"""Seconds until a warning is repeated, while its cause lasts."""
_EJECT_EVERY = 5.0
"""Seconds until the order to end a process is sent again, while it has not ended."""


class Watch:
    """What was said and done about processes that delay a run.

    Args:
        hub: sends orders.
        recorder: the coordinator's trace.
        patience: how long the run waits for a process.
        say: shows a message to the user.
    """

    def __init__(
        self, hub: Hub, recorder: Recorder, patience: Patience, say: Callable[[str], object]
    ) -> None:
        self._hub = hub
        self._recorder = recorder
        self._patience = patience
        self._say = say
        self._warned: dict[str, float] = {}
        """Processes that delay the run, and when they were named last."""
        self._ejected: dict[str, float] = {}
        """Processes whose agents were ordered to end them, and when the order was sent last."""
        self._longest = 0.0
        """The most seconds between two signs of progress so far."""

    def forget(self, name: str) -> None:
        """A process that was to be ended has a successor."""
        self._ejected.pop(name, None)
        self._warned.pop(name, None)

    def note(self, before: Sign, after: Sign) -> None:
        """Note how long a process took to get on, for what counts as long in this run."""
        if after.moved > before.moved and after.moved == after.heard:
            self._longest = max(self._longest, after.moved - before.moved)

    def warn(self, now: float, workers: Mapping[str, Sign], servers: Mapping[str, Sign]) -> None:
        """Name each process that delays the run, now and then, and report when it is back."""
        # A fixed limit would name every worker of a model whose steps take longer.
        still = max(STILL, 2 * self._longest)
        limits = {"silence": SILENCE, "stall": STALL, "still": still}
        found = [*suspects(now, workers, **limits), *suspects(now, servers, **limits)]
        names = {suspect.member.name for suspect in found}
        for suspect in found:
            name = suspect.member.name
            if name not in self._warned or now - self._warned[name] >= REPEAT:
                self._warned[name] = now
                self._recorder.event("suspect", {"words": str(suspect)})
                self._say(str(suspect))
        for name in sorted(self._warned.keys() - names):
            del self._warned[name]
            sign = workers.get(name) or servers.get(name)
            if sign is not None:
                words = f"{sign.member} is back"
                self._recorder.event("back", {"words": words})
                self._say(words)

    def eject(
        self,
        now: float,
        workers: Mapping[str, Sign],
        servers: Mapping[str, Sign],
        starting: Container[str],
        agent_of: Callable[[Member], str],
    ) -> None:
        """Order the end of processes that have delayed the run for too long.

        Args:
            now: the time of the coordinator's clock.
            workers: the last sign of life of every worker.
            servers: the same of every server.
            starting: those that have not begun to train or to serve.
            agent_of: the name of the agent of a process's host.
        """
        late = overdue(now, workers, self._patience, starting)
        for suspect in late:
            name = suspect.member.name
            others = len(workers.keys() - self._ejected.keys() - {name})
            # The only worker that is left has the parameters of strategies without servers, and
            # ending it may end the run: it gets more time, unless its end was ordered while there
            # were others.
            if name in self._ejected or others or suspect.seconds > self._patience.last:
                self._order(now, [suspect], agent_of)
        self._order(now, overdue(now, servers, self._patience, starting), agent_of)

    def _order(
        self, now: float, late: Iterable[Suspect], agent_of: Callable[[Member], str]
    ) -> None:
        for suspect in late:
            name = suspect.member.name
            ordered = self._ejected.get(name)
            # The order may be lost with a connection or an agent that is restarting: it is repeated
            # until the process is gone (`docs/decisions/0043-fences.md`).
            if ordered is None or now - ordered > _EJECT_EVERY:
                self._ejected[name] = now
                # With the process id, because the order may arrive when a successor has the name
                # already.
                order = Eject(name, f"ejected, because {suspect.why}", suspect.member.pid)
                self._hub.send(agent_of(suspect.member), order)
