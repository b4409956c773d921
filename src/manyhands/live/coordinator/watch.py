"""Watch over the heartbeats of workers: warnings of those that delay a run, and their ejection.

It decides with the pure functions of `manyhands.leasing.membership`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.leasing.membership import suspects
from manyhands.wire import Warn
from manyhands.wire.leasing import Eject

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    from manyhands.leasing.membership import Member, Sign
    from manyhands.trace import Recorder
    from manyhands.transport.control import Hub

SILENCE = 3.5
"""Seconds without a heartbeat after which a warning names the worker: within 5 s of its loss."""
STALL = 10.0
"""Seconds of waiting in a collective after which a warning names the workers that are awaited."""
PATIENCE = 30.0
"""Seconds without a heartbeat after which a worker is ejected, if the others can continue."""
START_PATIENCE = 600.0
"""The same for a worker that is still starting: a long import may delay its heartbeats. Its agent
watches the process, and the heartbeats of that agent show whether the host is alive."""
_EJECT_EVERY = 5.0
"""Seconds until the order to end a worker is sent again, while the worker has not ended."""


class Watch:
    """What was said and done about workers that delay a run.

    Args:
        hub: sends warnings and orders.
        recorder: the coordinator's trace.
        patience: seconds without a heartbeat after which a worker is ejected.
    """

    def __init__(self, hub: Hub, recorder: Recorder, patience: float) -> None:
        self._hub = hub
        self._recorder = recorder
        self._patience = patience
        self._suspected: set[str] = set()
        self._ejected: dict[str, float] = {}
        """Workers whose agents were ordered to end them, and when the order was sent last."""

    def forget(self, name: str) -> None:
        """A worker that was to be ended has a successor."""
        self._ejected.pop(name, None)

    def warn(self, now: float, signs: Mapping[str, Sign]) -> None:
        """Warn once of each worker that delays the run, and report when it is back."""
        suspected = set()
        for suspect in suspects(now, signs, silence=SILENCE, stall=STALL):
            suspected.add(suspect.member.name)
            if suspect.member.name not in self._suspected:
                self._recorder.event("suspect", {"words": str(suspect)})
                self._hub.send("agent-0", Warn(str(suspect)))
        for name in sorted(self._suspected - suspected & signs.keys()):
            if name in signs:
                words = f"{signs[name].member} is back"
                self._recorder.event("back", {"words": words})
                self._hub.send("agent-0", Warn(words))
        self._suspected = suspected

    def eject(
        self,
        now: float,
        signs: Mapping[str, Sign],
        starting: Container[str],
        agent_of: Callable[[Member], str],
    ) -> None:
        """Order the end of workers that sent no heartbeat for too long, if others can continue.

        Args:
            now: the time of the coordinator's clock.
            signs: the last sign of life of every worker.
            starting: workers that have not begun to train.
            agent_of: the name of the agent of a worker's host.
        """
        for sign in signs.values():
            silent = now - sign.heard
            starts = sign.member.name in starting
            patience = max(self._patience, START_PATIENCE) if starts else self._patience
            ordered = self._ejected.get(sign.member.name)
            if silent > patience and (ordered is None or now - ordered > _EJECT_EVERY):
                others = len(signs) - len(self._ejected.keys() & signs.keys()) - 1
                if ordered is None and others < 1:
                    return
                self._ejected[sign.member.name] = now
                words = f"ejected, because it sent no heartbeat for {silent:.0f} s"
                self._hub.send(agent_of(sign.member), Eject(sign.member.name, words))
