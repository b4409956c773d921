"""The lease service in the coordinator's process: channels, time limit and count of samples."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from manyhands.leasing.lease_service import LeaseService
from manyhands.leasing.leases import Leases
from manyhands.live.coordinator.journal import (
    EvaluationDue,
    LeaseSnapshot,
    LiveLeaseState,
    StoringDue,
    TimeIsUp,
)
from manyhands.transport.reliable_channel import ReliableChannel
from manyhands.wire.leasing import Word

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from manyhands.leasing.lease_service import Letters
    from manyhands.live.assignment import Leasing
    from manyhands.live.coordinator.journal import Decision
    from manyhands.trace import Recorder
    from manyhands.transport.control import Hub
    from manyhands.wire import Control


class LiveLeaseService:
    """Passes messages between workers and `manyhands.leasing.lease_service`, which decides.

    Args:
        numbers: the job's sizes and limits.
        workers: number of workers among which a global batch is divided.
        hub: sends the answers.
        recorder: the coordinator's trace; the count of samples is written there.
        clock: a source of seconds.
        asking: a file that asks for a checkpoint if it exists; None for none.
        note: receives decisions that the clock makes, before they take effect.
    """

    def __init__(
        self,
        numbers: Leasing,
        workers: int,
        hub: Hub,
        recorder: Recorder,
        clock: Callable[[], float],
        note: Callable[[str, Decision], object] | None = None,
        asking: Path | None = None,
    ) -> None:
        self._note = note
        self._asking = asking
        self._numbers = numbers
        self._leases = Leases(
            numbers.samples,
            numbers.global_batch,
            workers,
            numbers.budget,
            pauses=numbers.evaluates,
            lockstep=numbers.lockstep,
            by_rank=numbers.by_rank,
            by_speed=numbers.by_speed,
            points=numbers.points,
            storing=numbers.storing,
            since=numbers.since,
            rounds=numbers.rounds,
        )
        self._service = LeaseService(
            self._leases,
            evaluates=numbers.evaluates,
            lockstep=numbers.lockstep,
            early=numbers.early,
            stores_last=_is_due_at_end(numbers),
        )
        self._hub = hub
        self._recorder = recorder
        self._clock = clock
        self._begun: float | None = None
        self._stopped = False
        self._evaluations = 0
        self._evaluated_at = 0.0
        """When the last evaluation was complete, or training began."""
        self._stored_at = 0.0
        """When the last checkpoint was asked for, or training began."""
        self._epochs = self._leases.committed // numbers.samples
        self._accounted = (0, 0, 0)
        self._shares = self._leases.shares
        self._channels: dict[str, ReliableChannel] = {}
        self._least: dict[str, int] = {}
        """By worker that was lost, the least incarnation whose messages are accepted."""

    @property
    def committed(self) -> int:
        """Samples whose update is part of the shared state."""
        return self._leases.committed

    @property
    def is_over(self) -> bool:
        """Whether all samples are committed and the model is stored."""
        return self._service.is_over

    @property
    def has_ended(self) -> bool:
        """Whether no samples are left, and the model is being stored or is stored."""
        return self._service.has_ended

    def open(self, workers: Iterable[str]) -> None:
        """Begin with these workers; the job's time limit counts from here."""
        self._service.open(workers)
        self._begun = self._evaluated_at = self._stored_at = self._clock()
        self._begun -= self._numbers.spent

    def admit(self, worker: str) -> None:
        """Admit a worker to a run that is under way."""
        self._send(self._service.admit(worker))

    def receive(self, worker: str, word: Control) -> None:
        """Process a message of a worker."""
        if not isinstance(word, Word):
            return
        channel = self._channel(worker, word.life)
        if channel is None:
            return
        for message in channel.receive(word):
            self._send(self._service.hear(worker, message))
        self._account()

    def _channel(self, worker: str, incarnation: int) -> ReliableChannel | None:
        """The channel to one incarnation of a worker; None if that incarnation is over.

        A worker whose link was cut may send again after it was counted as lost.
        """
        channel = self._channels.get(worker)
        # A message of an incarnation that is over would open its channel again, and what it commits
        # would count although its samples were leased to others.
        if incarnation < self._least.get(worker, incarnation) or (
            channel is not None and incarnation < channel.incarnation
        ):
            return None
        if channel is None or channel.incarnation < incarnation:
            channel = self._open(worker, incarnation)
        return channel

    def _open(self, worker: str, incarnation: int) -> ReliableChannel:
        send = partial(self._hub.send, f"{worker}.leases")
        channel = self._channels[worker] = ReliableChannel(incarnation, send, self._clock)
        return channel

    def _send(self, letters: Letters) -> None:
        for worker, message in letters:
            # A worker that has just joined has no channel before its first message, and a lost one
            # has none any more: the lease service has nothing to answer to either.
            if worker in self._channels:
                self._channels[worker].post(message)

    def lose(self, worker: str) -> None:
        """Note that a worker is lost: its leases are given to others."""
        channel = self._channels.pop(worker, None)
        if channel is not None:
            # The channel is gone, so this number is all by which late messages of this incarnation
            # are recognised.
            self._least[worker] = channel.incarnation + 1
        # Before the service returns them: afterwards the worker holds none.
        samples = self._leases.samples_of(worker)
        letters = self._service.lose(worker)
        self._recorder.event("given again", {"member": worker, "samples": str(samples)})
        self._send(letters)
        self._account()

    def check_timers(self) -> None:
        """Evaluate or stop when it is time, and resend messages that were not acknowledged."""
        for channel in self._channels.values():
            channel.check_timers()
        self._check_evaluation()
        self._check_storing()
        limit = self._numbers.seconds
        if limit is None or self._begun is None or self._stopped:
            return
        if self._clock() - self._begun >= limit:
            self._decide(TimeIsUp())

    def _check_evaluation(self) -> None:
        """Pause for an evaluation when the interval since the last one is over."""
        interval = self._numbers.evaluation_seconds
        if interval is None or self._begun is None or not self._numbers.evaluates:
            return
        now = self._clock()
        if self._evaluations != self._service.evaluations:
            self._evaluations, self._evaluated_at = self._service.evaluations, now
        if now - self._evaluated_at >= interval:
            self._decide(EvaluationDue())

    def _decide(self, decision: Decision) -> None:
        if self._note is not None:
            # A successor does not look at its own clock while it replays: a decision that is not in
            # the journal would not have been made, although workers were told of it.
            self._note("", decision)
        self.carry_out(decision)

    def carry_out(self, decision: Decision) -> None:
        """Carry out a decision of this coordinator or, when it is replayed, of a predecessor."""
        match decision:
            case TimeIsUp():
                self._stopped = True
                self._send(self._service.stop())
            case EvaluationDue():
                # Until this evaluation is complete, another one is not due.
                self._evaluated_at = self._clock()
                self._send(self._service.pause())
            case StoringDue():
                self._stored_at = self._clock()
                self._send(self._service.pause_to_store())
            case LeaseSnapshot(state=state):
                self._restore(state)

    def state(self) -> LiveLeaseState:
        """The state, for a successor."""
        return LiveLeaseState(
            service=self._service.state(),
            begun=self._begun,
            stopped=self._stopped,
            evaluations=self._evaluations,
            evaluated_at=self._evaluated_at,
            stored_at=self._stored_at,
            epochs=self._epochs,
            accounted=self._accounted,
            least=dict(self._least),
            channels={name: channel.state() for name, channel in self._channels.items()},
        )

    def _restore(self, state: LiveLeaseState) -> None:
        self._service.restore(state.service)
        self._begun, self._stopped = state.begun, state.stopped
        self._evaluations, self._evaluated_at = state.evaluations, state.evaluated_at
        self._stored_at = state.stored_at
        self._epochs, self._accounted = state.epochs, state.accounted
        self._least = dict(state.least)
        self._channels = {}
        for worker, channel in state.channels.items():
            self._open(worker, channel.incarnation).restore(channel)
        # Records before the snapshot are in the trace, and the replay does not make them again: the
        # recorder gets their sums from here.
        self._recorder.samples(*state.accounted)

    def resume(self) -> None:
        """Send again what a predecessor, whose inputs were replayed, may not have sent."""
        for channel in self._channels.values():
            channel.resume()

    def _check_storing(self) -> None:
        """Pause for a checkpoint when the interval is over, or one was asked for."""
        if not self._numbers.stores or self._begun is None:
            return
        now, interval = self._clock(), self._numbers.storing_seconds
        asked = self._asking is not None and self._asking.exists()
        if asked or (interval is not None and now - self._stored_at >= interval):
            self._decide(StoringDue())
        if asked and self._asking is not None:
            # After the decision is in the journal: a coordinator that is killed between the two
            # stores a second checkpoint, where it would store none in the other order.
            self._asking.unlink(missing_ok=True)

    def _account(self) -> None:
        leases = self._leases
        account = (leases.committed, leases.repeated, leases.lost)
        if account == self._accounted:
            return
        self._accounted = account
        self._recorder.samples(*account)
        if self._shares != leases.shares:
            self._shares = leases.shares
            self._recorder.event("shares", leases.share_words())
        while leases.committed + leases.lost >= (self._epochs + 1) * self._numbers.samples:
            samples = str((self._epochs + 1) * self._numbers.samples)
            self._recorder.event("epoch", {"number": str(self._epochs), "samples": samples})
            self._epochs += 1


def _is_due_at_end(numbers: Leasing) -> bool:
    """Whether the last sample of the run completes an interval of checkpoints."""
    if numbers.storing is None or numbers.budget is None:
        return False
    return numbers.storing.after(numbers.budget - 1, numbers.samples) == numbers.budget
