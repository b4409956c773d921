# ruff: noqa: ARG002 - a model hears of more than it looks at
"""Every protocol's server once more, in plain NumPy and in the words of its paper.

These know nothing of `manyhands.protocols`: they hear the same calls as the servers do, and say
which of them are to be answered, with what, and what the parameters are then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from manyhands.endpoint import Rest
from manyhands.testing import ExpectedAnswer, ReferenceServer

if TYPE_CHECKING:
    from manyhands.protocols import Asynchronous, Call, SoftSync
    from manyhands.testing import Case


def damped(protocol: Asynchronous | SoftSync, stale: int, usual: float) -> float:
    """λ_n / λ: 1 up to the usual staleness, then it falls as 1/τ or as 1/√τ."""
    if protocol.damping == "none" or stale <= max(1, usual):
        return 1.0
    ratio = max(1, usual) / stale
    return ratio if protocol.damping == "inverse" else ratio**0.5


class AsynchronousModel(ReferenceServer):
    """A step per push, whenever it comes."""

    def push(
        self, call: Call, payload: np.ndarray, samples: int, read: int
    ) -> list[ExpectedAnswer]:
        damping = damped(self.case.protocol, self.version - read, self.case.workers - 1)
        weight = samples / self.case.job.global_batch
        self.descend(self.compensated(call.sender, payload), weight * damping)
        self.version += 1
        return [self.answer(call)]

    def compensated(self, sender: str, gradient: np.ndarray) -> np.ndarray:
        return gradient


class CompensatedModel(AsynchronousModel):
    """The same, with g + c·g²·(x − what the sender read) in place of g."""

    def __init__(self, case: Case, x: np.ndarray) -> None:
        super().__init__(case, x)
        self._given: dict[str, np.ndarray] = {}

    def compensated(self, sender: str, gradient: np.ndarray) -> np.ndarray:
        moved = self.x - self._given[sender]
        return gradient + self.case.protocol.delay_compensation * gradient**2 * moved

    def hear(self, call: Call, payload: np.ndarray | None) -> list[ExpectedAnswer]:
        answers = super().hear(call, payload)
        if not isinstance(call.message, Rest):
            self.again(call.sender)
        return answers

    def again(self, sender: str) -> None:
        self._given[sender] = self.x.copy()


class StaleModel(ReferenceServer):
    """A step per push; the answer waits until the pusher is at most s ahead of the slowest."""

    def __init__(self, case: Case, x: np.ndarray) -> None:
        super().__init__(case, x)
        self._clocks = {f"worker-{rank}": 0 for rank in range(case.workers)}
        self._held: list[Call] = []
        self._unread = set(self._clocks)
        """Who has never asked to read; the first read is given to all at once."""
        self._reading: list[Call] = []

    def push(
        self, call: Call, payload: np.ndarray, samples: int, read: int
    ) -> list[ExpectedAnswer]:
        self._join(call.worker)
        self._clocks[call.worker] += 1
        if samples:
            self.descend(payload, samples / self.case.job.global_batch)
            self.version += 1
        self._held.append(call)
        return self._release()

    def pull(self, call: Call) -> list[ExpectedAnswer]:
        self._join(call.worker)
        self._unread.discard(call.worker)
        self._reading.append(call)
        return self._release()

    def rest(self, call: Call) -> list[ExpectedAnswer]:
        return super().rest(call) + self.leave(call.worker)

    def leave(self, worker: str) -> list[ExpectedAnswer]:
        self._clocks.pop(worker, None)
        self._unread.discard(worker)
        return self._release()

    def _join(self, worker: str) -> None:
        if worker not in self._clocks:
            self._clocks[worker] = min(self._clocks.values(), default=0)

    def _release(self) -> list[ExpectedAnswer]:
        free = min(self._clocks.values(), default=0) + self.case.protocol.staleness
        due = [call for call in self._held if self._clocks.get(call.worker, 0) <= free]
        self._held = [call for call in self._held if call not in due]
        if not self._unread:
            due, self._reading = due + self._reading, []
        return [self.answer(call) for call in due]


class RoundModel(ReferenceServer):
    """Rounds: over when so many have given, or all who are there."""

    def __init__(self, case: Case, x: np.ndarray) -> None:
        super().__init__(case, x)
        self.present = {f"worker-{rank}" for rank in range(case.workers)}
        self.given: list[tuple[Call, int, np.ndarray]] = []
        self.paused: set[str] = set()
        """Who will be there again as soon as one of them gives."""
        self.gone: set[str] = set()
        """Lives that are over."""

    @property
    def enough(self) -> float:
        return np.inf

    def conclude(self) -> None:
        """What a round does to the parameters."""
        raise NotImplementedError

    def push(
        self, call: Call, payload: np.ndarray, samples: int, read: int
    ) -> list[ExpectedAnswer]:
        self.present |= {call.worker} | self.paused
        self.paused.clear()
        self.given.append((call, samples, payload))
        return self._close()

    def pull(self, call: Call) -> list[ExpectedAnswer]:
        self.present.add(call.worker)
        self.paused.discard(call.worker)
        return super().pull(call)

    def rest(self, call: Call) -> list[ExpectedAnswer]:
        answers = super().rest(call) + self.leave(call.worker)
        if call.message.pauses and self.enough >= self.case.workers:
            self.paused.add(call.worker)
        return answers

    def leave(self, worker: str) -> list[ExpectedAnswer]:
        self.present.discard(worker)
        self.paused.discard(worker)
        self.gone.update(call.sender for call, _, _ in self.given if call.worker == worker)
        return self._close()

    def _close(self) -> list[ExpectedAnswer]:
        givers = {call.sender for call, _, _ in self.given}
        awaited = self.present - {sender.partition(".")[0] for sender in givers - self.gone}
        if not givers or (awaited and len(givers) < self.enough):
            return []
        self.conclude()
        self.version += self.counts()
        calls = [call for call, _, _ in self.given]
        self.given = []
        return [self.answer(call) for call in calls]

    def counts(self) -> bool:
        """Whether a round makes a version: one of empty batches does not."""
        return any(samples for _, samples, _ in self.given)

    def mean(self) -> tuple[int, np.ndarray]:
        """Samples of this round, and the mean of what was given, by samples."""
        samples = sum(count for _, count, _ in self.given)
        total = sum((count * what for _, count, what in self.given if count), np.zeros(1))
        return samples, total / max(1, samples)


class SynchronousModel(RoundModel):
    """One step with the mean gradient."""

    def conclude(self) -> None:
        samples, mean = self.mean()
        if samples:
            self.descend(mean, samples / self.case.job.global_batch)


class SoftModel(RoundModel):
    """W ← W − Σ λ_n·ΔW_n over S; what is late is perhaps not wanted."""

    def __init__(self, case: Case, x: np.ndarray) -> None:
        super().__init__(case, x)
        self._damped: list[float] = []

    def conclude(self) -> None:
        counted = [
            (damping * samples, what)
            for (_, samples, what), damping in zip(self.given, self._damped, strict=True)
            if samples
        ]
        whole = (
            self.case.workers / len(self.given) if self.case.protocol.weigh_as == "step" else 1.0
        )
        self._damped = []
        if counted:
            gradient = sum((share * what for share, what in counted), np.zeros(1))
            shares = sum(share for share, _ in counted)
            self.descend(gradient / shares, whole * shares / self.case.job.global_batch)

    @property
    def enough(self) -> float:
        several = self.case.protocol.servers > 1 and self.case.protocol.wait_for > 1
        return np.inf if several else self.case.protocol.wait_for

    def push(
        self, call: Call, payload: np.ndarray, samples: int, read: int
    ) -> list[ExpectedAnswer]:
        if self.case.protocol.late == "drop" and read < self.version:
            return [self.answer(call, applied=False)]
        usual = self.case.workers / self.case.protocol.wait_for - 1
        self._damped.append(damped(self.case.protocol, self.version - read, usual))
        return super().push(call, payload, samples, read)


class AveragingModel(RoundModel):
    """The mean replica."""

    def conclude(self) -> None:
        samples, mean = self.mean()
        if samples:
            self.x = mean


class OuterModel(RoundModel):
    """Δ = θ − mean(θ_n); v ← μ·v + Δ; θ ← θ − η·(Δ + μ·v)."""

    def conclude(self) -> None:
        samples, mean = self.mean()
        if samples:
            way, mu = self.x - mean, self.case.protocol.outer_momentum
            before = np.zeros(1) if self._velocity is None else self._velocity
            self._velocity = mu * before + way
            self.x = self.x - self.case.protocol.outer_lr * (way + mu * self._velocity)


class StreamModel(OuterModel):
    """As `OuterModel`; with a quorum the mean of changes, late ones in the next round."""

    def __init__(self, case: Case, x: np.ndarray) -> None:
        super().__init__(case, x)
        self._late: list[tuple[int, np.ndarray]] = []

    @property
    def enough(self) -> float:
        wanted = self.case.protocol.wait_for
        return np.inf if wanted is None else wanted

    def counts(self) -> bool:
        return True

    def push(
        self, call: Call, payload: np.ndarray, samples: int, read: int
    ) -> list[ExpectedAnswer]:
        self.gone.discard(call.sender)
        if self.case.protocol.wait_for is None or read == self.version:
            answers = super().push(call, payload, samples, read)
            return answers + (self.leave(call.worker) if call.message.rests else [])
        self.present.add(call.worker)
        if samples:
            self._late.append((samples, payload))
        answers = self.leave(call.worker) if call.message.rests else self._close()
        return [*answers, self.answer(call)]

    def _close(self) -> list[ExpectedAnswer]:
        if self._late and not self.given and not self.present:
            self.conclude()
            self.version += 1
        return super()._close()

    def mean(self) -> tuple[int, np.ndarray]:
        """The mean place that workers have reached."""
        samples, mean = super().mean()
        if self.case.protocol.wait_for is None:
            return samples, mean
        total = samples * mean + sum((count * what for count, what in self._late), np.zeros(1))
        samples += sum(count for count, _ in self._late)
        self._late = []
        return samples, self.x + total / max(1, samples)


def alpha(case: Case) -> float:
    """α = η·ρ, or 0.9 / N, unless it is given."""
    rho, given = case.protocol.rho, case.protocol.alpha
    if given is not None:
        return given
    return 0.9 / case.workers if rho is None else case.rate * rho


def beta(case: Case) -> float:
    """β = N·α, unless it is given."""
    given = case.protocol.beta
    return case.workers * alpha(case) if given is None else given


class ElasticModel(RoundModel):
    """x̄ ← (1 − β)·x̄ + (β/N)·Σx_i, all together; of N, those who are not there are at x̄."""

    def counts(self) -> bool:
        return True

    def conclude(self) -> None:
        pull = sum((what - self.x for _, _, what in self.given), np.zeros(1))
        self.x = self.x + beta(self.case) / self.case.workers * pull


class ElasticAloneModel(RoundModel):
    """The same with one worker at a time, which is given the centre as it met it."""

    def push(
        self, call: Call, payload: np.ndarray, samples: int, read: int
    ) -> list[ExpectedAnswer]:
        met = self.x.copy()
        self.x = self.x + beta(self.case) / self.case.workers * (payload - self.x)
        self.version += 1
        return [ExpectedAnswer(call.sender, call.number, self.version, True, met)]


class ElasticTurnsModel(ElasticAloneModel):
    """The same, in the order of the ranks of those who are there."""

    def __init__(self, case: Case, x: np.ndarray) -> None:
        super().__init__(case, x)
        self._asking: dict[str, Call] = {}
        self._having: str | None = None
        self._last = -1

    def turn(self, call: Call) -> list[ExpectedAnswer]:
        self.present.add(call.worker)
        self._asking[call.worker] = call
        return self._go()

    def push(
        self, call: Call, payload: np.ndarray, samples: int, read: int
    ) -> list[ExpectedAnswer]:
        answers = super().push(call, payload, samples, read)
        if self._having == call.worker:
            self._having = None
        return answers + self._go()

    def pull(self, call: Call) -> list[ExpectedAnswer]:
        return super().pull(call) + self._go()

    def leave(self, worker: str) -> list[ExpectedAnswer]:
        answers = super().leave(worker)
        self._asking.pop(worker, None)
        if self._having == worker:
            self._having = None
        return answers + self._go()

    def _go(self) -> list[ExpectedAnswer]:
        ranks = sorted(int(name[7:]) for name in self.present)
        if self._having or not ranks:
            return []
        after = [rank for rank in ranks if rank > self._last] or ranks
        call = self._asking.pop(f"worker-{after[0]}", None)
        if call is None:
            return []
        self._having, self._last = call.worker, after[0]
        return [self.answer(call, parameters=False)]
