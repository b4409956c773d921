# ruff: noqa: ARG002 - a law hears of more than it looks at
"""Streaming: a worker sends one part after the other, and merges the answers some steps later."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

from manyhands.endpoint import Push
from manyhands.testing import BrokenLawError, Law, near, parts

if TYPE_CHECKING:
    from manyhands.endpoint import Parameters, Said
    from manyhands.leasing.leases import Lease
    from manyhands.testing import Case, Life


class Streams(Law):
    """x ← x − λ·∇f(x); a part is replaced by what came back, or by the mean if steps came between.

    With a quorum a worker gives how far a part has moved since the last answer.
    """

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._x: dict[str, list[np.ndarray]] = {}
        self._start: dict[str, list[np.ndarray]] = {}
        """By life and server, the parameters of the last answer."""
        self._came: defaultdict[str, dict[int, np.ndarray]] = defaultdict(dict)
        """By life and server, the answer that is not merged yet."""
        self._sent: defaultdict[str, dict[int, int]] = defaultdict(dict)
        """By life and server, the step after which it was sent."""
        self._round: defaultdict[str, dict[int, int]] = defaultdict(dict)
        """By life and server, the round that it was sent for."""
        self._steps: defaultdict[str, int] = defaultdict(int)
        self._samples: defaultdict[str, list[int]] = defaultdict(lambda: [0] * case.servers)
        self._velocity: dict[str, np.ndarray] = {}
        self._now: dict[str, str] = {}
        """By worker, its current life."""
        self._looking: set[str] = set()
        self._resting: set[str] = set()
        """Lives that have given everything, and pull before they compute again."""

    def started(self, life: Life) -> None:
        self._now[life.name] = life.sender
        self._x[life.sender] = [np.zeros(1)] * self.case.servers
        self._start[life.sender] = [np.zeros(1)] * self.case.servers

    def looks_up(self, life: Life) -> None:
        self._looking.add(life.sender)

    def looked_up(self, life: Life) -> None:
        self._looking.discard(life.sender)

    def took(
        self,
        life: Life,
        server: int,
        message: Parameters,
        payload: np.ndarray | None,
        *,
        beside: bool,
    ) -> None:
        if payload is None or life.sender in self._looking:
            return
        if beside:
            self._came[life.sender][server] = payload
        else:
            self._resting.discard(life.sender)
            self._x[life.sender][server] = self._start[life.sender][server] = payload
            self._came[life.sender].pop(server, None)
            self._sent[life.sender].pop(server, None)

    def _merge(self, sender: str, server: int) -> None:
        came, sent = self._came[sender].pop(server), self._sent[sender].pop(server)
        here = self._x[sender][server]
        self._x[sender][server] = came if sent == self._steps[sender] else (here + came) / 2
        self._start[sender][server] = came

    def leased(self, worker: str, lease: Lease) -> None:
        """A step begins, maybe an empty one: the step before is over, and what is due is merged.

        Before a worker waits for the answer of a round, it has merged those of earlier rounds, also
        if they are not due: with a quorum a part may lag behind the others. No round waits for a
        worker that rests.
        """
        sender = self._now[worker]
        sent = self._sent[sender]
        due = [one for one in sent if sent[one] + self.case.protocol.overlap <= self._steps[sender]]
        for server in sorted(due, key=lambda one: sent[one]):
            place = (self._round[sender][server], server)
            earlier = [one for one in sent if (self._round[sender][one], one) < place]
            for one in (*sorted(earlier, key=self._round[sender].get), server):
                if sender in self._resting and (one != server or one not in self._came[sender]):
                    continue
                if one in sent and one not in self._came[sender]:
                    raise BrokenLawError(f"{sender} goes on without the answer of {one}")
                if one in sent:
                    self._merge(sender, one)
        self._steps[sender] += 1

    def computed(self, life: Life, lease: Lease, x: np.ndarray) -> None:
        sender = life.sender
        here = np.concatenate(self._x[sender])
        if not near(x, here):
            raise BrokenLawError(f"{sender} computes at {x}, and should be at {here}")
        gradient, before = self.case.gradient(here, lease), self._velocity.get(sender)
        now = gradient if before is None else self.case.momentum * before + gradient
        self._velocity[sender] = now
        rate = self.case.rate * lease.total / self.case.job.global_batch
        self._x[sender] = parts(here - rate * now, self.case.servers)
        for server in range(self.case.servers):
            self._samples[sender][server] += lease.samples

    def posted(self, life: Life, server: int, message: Said, payload: np.ndarray | None) -> None:
        if not isinstance(message, Push):
            return
        sender = life.sender
        if server in self._sent[sender]:
            self._merge(sender, server)
        expected = self._x[sender][server]
        if self.case.protocol.wait_for is not None:
            expected = expected - self._start[sender][server]
        samples = self._samples[sender][server]
        if message.samples != samples:
            raise BrokenLawError(f"{sender} gives {message.samples} samples, not {samples}")
        if samples and not near(payload, expected):
            raise BrokenLawError(f"{sender} gives {payload}, not {expected}")
        self._samples[sender][server] = 0
        if message.rests:
            self._resting.add(sender)
        self._sent[sender][server] = self._steps[sender]
        self._round[sender][server] = message.version
