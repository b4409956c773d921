"""The coordinator: tracks the members of a run, detects lost and stuck workers, collects traces.

It decides with the pure functions of `manyhands.leasing.membership`; this file receives messages,
keeps the state and sends the answers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from manyhands.leasing.membership import Member, Membership, Patience, Sign
from manyhands.live.coordinator.agent_watch import AgentWatch
from manyhands.live.coordinator.journal import HostLost, PeerReturned, Regrouped, TraceWritten
from manyhands.live.coordinator.member_traces import MemberTraces, is_member
from manyhands.live.coordinator.notices import MemberNotices
from manyhands.live.coordinator.watch import Watch
from manyhands.wire import (
    Beat,
    Control,
    Goodbye,
    Hello,
    Pong,
    Repeat,
    Roll,
    Status,
    TraceChunk,
    Warn,
)
from manyhands.wire.joining import Disband, Missed
from manyhands.wire.leasing import Dismiss, Eject, Lost, Word

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from manyhands.leasing.regrouping import Regrouping
    from manyhands.live.coordinator.admission import Admission
    from manyhands.live.coordinator.journal import CoordinatorJournal, Decision
    from manyhands.live.coordinator.lease_service import LiveLeaseService
    from manyhands.live.member.trace_files import TraceFiles
    from manyhands.trace import Recorder
    from manyhands.transport.control import Hub

_TELL_EVERY = 0.5
_RESEND_EVERY = 0.25
"""Seconds between checks of all reliable channels: the cost of a check grows with the number of
workers, so it is not made with every message. A message is resent after a second or more."""
_LAST_WORDS = 2.0
_HEARD_WITHIN = 2.0
"""Seconds after a restart in which all members should have sent a heartbeat."""


class Coordinator:
    """The state of one run.

    Args:
        hub: sends and receives messages.
        expected: number of workers in the run.
        folder: the run's folder, for the members' traces.
        host: the name of this host.
        recorder: the coordinator's own trace.
        clock: a source of seconds.
        lease_service: leases samples to workers; None under strategies of collectives.
        admission: admits other hosts; None for a run on one host.
        patience: how long the run waits for a process.
        takes_back: whether a worker may join a run that is under way.
        peers: whether workers call each other, so that they are told who has returned.
        files: writes the traces.
        journal: keeps what a successor has to know; None for a coordinator without successors.
        regrouping: the groups of workers in lockstep that may be replaced; None if there are none.
        terminal: shows a message to the user without the agent, which may be stopped.
        life: the incarnation number of this coordinator.
    """

    def __init__(
        self,
        hub: Hub,
        expected: int,
        folder: Path,
        host: str,
        recorder: Recorder,
        clock: Callable[[], float],
        lease_service: LiveLeaseService | None,
        admission: Admission | None = None,
        patience: Patience | None = None,
        *,
        takes_back: bool = True,
        peers: bool = False,
        files: TraceFiles,
        journal: CoordinatorJournal | None = None,
        regrouping: Regrouping | None = None,
        terminal: Callable[[str], object] = lambda _: None,
        life: int = 0,
    ) -> None:
        self._hub = hub
        self._journal = journal
        self._regrouping = regrouping
        self._unheard: set[str] = set()
        """Members that have sent no heartbeat since this coordinator continues for another."""
        self._resumed = 0.0
        self._lease_service = lease_service
        self._admission = admission
        self._servers: dict[str, Sign] = {}
        self._addresses: dict[str, tuple[str, str]] = {}
        """Host and address of each server that other hosts connect to."""
        self._expected = expected
        self._member_traces = MemberTraces(folder / "trace", files)
        self._host = host
        self._recorder = recorder
        self._files = files
        self._clock = clock
        self._takes_back, self._peers = takes_back, peers
        self._incarnations: dict[str, int] = {}
        """By worker, the least incarnation whose messages are accepted."""
        self._greeted: dict[str, int] = {}
        """By worker, the incarnation that sent the last `Hello`."""
        self._starting: set[str] = set()
        """Workers that have sent `Hello` and have not asked for samples yet."""
        self._notices = MemberNotices()
        self._dismissed = False
        """Whether the last worker has left and the servers were dismissed."""
        self._waiting: dict[str, Member] = {}
        self.membership = Membership()
        self._signs: dict[str, Sign] = {}
        self._samples: dict[str, int] = {}
        self._losses: dict[str, float] = {}
        self._watch = Watch(hub, recorder, patience or Patience(), self._warn)
        self._returned: set[str] = set()
        self._reported = 0.0
        self._looked = 0.0
        self._agent_left: float | None = None
        self._life = life
        self._agent = AgentWatch(terminal, recorder)

    def serve(self) -> None:
        """Serve messages until the agent and all members have left."""
        while not self._is_over():
            self.turn(0.1)
        self._account_samples()
        self._recorder.flush()
        self._files.close()
        if self._admission is not None:
            self._admission.close()

    def turn(self, timeout: float) -> None:
        """Process messages that arrive within `timeout` seconds, then check the timers."""
        for name, message in self._hub.receive(timeout):
            if self._journal is not None:
                # Before the message takes effect: an answer to a message that a successor does not
                # know would be one that it does not stand by
                # (`docs/decisions/0072-no-single-point.md`).
                self._journal.note(name, message)
            self._receive(name, message)
        # After the messages: while this process was stopped, heartbeats have waited in the queue,
        # and their senders must not be judged silent.
        self._check_timers()

    def replay(self, name: str, message: Control | Decision) -> None:
        """Process an input of a predecessor again."""
        if isinstance(message, HostLost):
            if self._admission is not None:
                self._admission.lose(message.agent, message.words)
        elif isinstance(message, Regrouped):
            groups = {} if self._regrouping is None else self._regrouping.restore(message.state)
            # A newcomer has joined its group by a heartbeat, and heartbeats are not in the journal:
            # the state of the groups is the only record of it.
            for back in sorted(groups.keys() & self._signs.keys() - self.membership.members.keys()):
                self._note_joined(self._signs[back].member)
        elif isinstance(message, PeerReturned):
            self._announce(message.name)
        elif isinstance(message, Control):
            self._receive(name, message)
        elif self._lease_service is not None:
            self._lease_service.carry_out(message)

    def resume(self) -> None:
        """Continue for a predecessor, whose inputs were replayed.

        No member counts as silent for the time in which there was no coordinator.
        """
        now = self._resumed = self._clock()
        self._agent.forget()
        for signs in (self._signs, self._servers):
            for name, sign in signs.items():
                signs[name] = replace(sign, heard=now, moved=now)
        # The predecessor may have been killed between an entry in the journal and the message that
        # follows from it: each member gets the roll again with its first heartbeat.
        self._unheard = {*self._signs, *self._servers}
        if self._lease_service is not None:
            self._lease_service.resume()
        if self._admission is not None:
            self._admission.resume()

    def _is_over(self) -> bool:
        if self._agent_left is None:
            return False
        left = (
            self._signs or self._servers or (self._admission is not None and self._admission.agents)
        )
        return not left or self._clock() - self._agent_left > _LAST_WORDS

    def _receive(self, name: str, message: Control) -> None:
        if name == "agent-0":
            self._agent.hear(self._clock(), message)
        # A goodbye of the last worker may have been lost with a coordinator; then only the agent
        # knows that the servers are not needed any more.
        if name == "agent-0" and isinstance(message, Disband) and not message.failed:
            self._dismiss_servers()
        if self._admission is not None and self._admission.receive(name, message):
            return
        match message:
            case Hello():
                self._note_hello(name, message)
            case Beat():
                self._hub.send(name, Pong(message.sent, self._clock(), self._life))
                self._note(name, message)
                self._resend(name, message)
                self._acquaint(name)
            case TraceChunk():
                self._member_traces.append(name, message.lines)
            case Goodbye():
                self._note_goodbye(name, message)
            case Lost(name=gone, words=words, life=incarnation):
                # The agent repeats a loss until it is confirmed. Noted a second time it would
                # remove the successor, which may have joined meanwhile.
                if not self._is_noted(gone, incarnation):
                    # Messages that it sent before it was killed may still arrive.
                    self._incarnations[gone] = max(incarnation + 1, self._incarnations.get(gone, 0))
                    self._lose(gone, words)
                # Confirmed also if it was noted before: the confirmation may have been lost with a
                # predecessor, and the agent starts the successor only when it has one.
                self._hub.send("agent-0", Missed(gone, self.membership.epoch > 0))
            case _ if self._lease_service is not None and name.endswith(".leases"):
                worker = name.removesuffix(".leases")
                self._starting.discard(worker)
                self._note_ready(worker, message)
                self._lease_service.receive(worker, message)
            case _:
                self._recorder.event("unexpected", {"from": name, "what": type(message).__name__})

    def _is_noted(self, name: str, incarnation: int) -> bool:
        """Whether a loss was reported before: the agent repeats it to a restarted coordinator."""
        if incarnation:
            return self._incarnations.get(name, 0) > incarnation
        return name in self._incarnations and name not in self._signs

    def _acquaint(self, name: str) -> None:
        """Repeat the roll to a worker that a predecessor may not have sent it to.

        A member whose `Hello` was lost with a predecessor is asked to repeat it.
        """
        if name in self._unheard:
            self._unheard.discard(name)
            if self.membership.epoch and name in self._signs:
                self._hub.send(name, self._roll(name))
        elif not (name in self._incarnations or name in self._servers) and is_member(name):
            self._hub.send(name, Repeat())

    def _note_hello(self, name: str, hello: Hello) -> None:
        member = Member(hello.role, hello.rank, hello.host, hello.pid)
        if name != member.name:
            return
        if hello.address:
            server = f"server-{hello.rank}"
            self._addresses[server] = (hello.host, hello.address)
        if hello.role == "server":
            now = self._clock()
            self._servers[name] = Sign(member, now, now, 0, "start", "its start")
            self._watch.forget(name)
            self._complete_if_all()
            return
        # The `Hello` of a worker that is counted as lost was under way for long. Accepted, it would
        # be waited for, and it is dead.
        if hello.life < self._incarnations.get(name, 0):
            return
        if name in self._signs and hello.life == self._greeted.get(name):
            return  # It was asked to repeat it, and the first one has arrived meanwhile.
        if name in self._signs and hello.life > self._incarnations.get(name, 0):
            # On another host a worker may be restarted before its loss is reported.
            self._lose(name, "its successor has joined")
        self._incarnations[name] = self._greeted[name] = hello.life
        if self.membership.epoch and not self._takes_back:
            words = "the run had already begun when it was restarted"
            self._hub.send(self._agent_of(member), Eject(name, words))
            return
        self._waiting[name] = member
        self._starting.add(name)
        now = self._clock()
        self._signs[name] = Sign(member, now, now, 0, "start", "its start")
        if self.membership.epoch:
            self._take_back(member)
        else:
            self._complete_if_all()

    def _take_back(self, member: Member) -> None:
        """Admit a restarted worker to a run that is under way."""
        # The order to end its predecessor is not repeated, and the successor counts again as one of
        # the workers that are left.
        self._watch.forget(member.name)
        if self._lease_service is None:
            # It reports when it is ready for a group; then it is one of the members again.
            if self._regrouping is not None:
                self._hub.send(member.name, self._roll())
            return
        if self._peers:
            self.membership = self.membership.joined(member)
            # Not shown as returned yet: its peer server has the initial parameters, and a neighbour
            # that averaged with them would lose half of what it has learnt
            # (`docs/decisions/0081-peers-that-return.md`).
            self._notices.expected.add(member.name)
        else:
            self._note_joined(member)
        self._lease_service.admit(member.name)
        self._hub.send(member.name, self._roll(member.name))

    def _note_ready(self, name: str, message: Control) -> None:
        """Tell peers of a restarted one when it asks for samples: it has a replica by then."""
        # A late message of the predecessor says nothing about the successor's replica. In a replay
        # the entry that follows this message announces the worker, at the same place in the
        # sequence.
        is_its = isinstance(message, Word) and message.life == self._greeted.get(name)
        if name in self._notices.expected and is_its and not self._hub.is_mute:
            if self._journal is not None:
                # Before the notice is sent: notices are numbered, and a successor that did not have
                # this one would give its number to another.
                self._journal.note("", PeerReturned(name))
            self._announce(name)

    def _announce(self, name: str) -> None:
        member, epoch = self._signs[name].member, self.membership.epoch
        host, address = self._addresses.get(f"server-{member.rank}", ("", ""))
        about = (name, self._greeted[name], epoch, host, address)
        notice = self._notices.rejoin(*about)
        self._hub.send_all(self._signs, notice)
        self._returned.add(name)
        self._recorder.event("returned", {"member": str(member)})

    def _complete_if_all(self) -> None:
        """Begin when all workers have joined and the addresses of all servers are known."""
        reachable = self._admission is None or len(self._addresses) >= self._admission.servers
        if not self.membership.epoch and len(self._waiting) == self._expected and reachable:
            self._complete()

    def _complete(self) -> None:
        self.membership = self.membership.joined(*self._waiting.values())
        if self._admission is not None:
            self._admission.begin()
        if self._lease_service is not None:
            self._lease_service.open(self._waiting)
        workers = sorted(self._waiting.values())
        self._recorder.event(
            "epoch-of-members",
            {
                "epoch": str(self.membership.epoch),
                "members": ", ".join(str(member) for member in workers),
            },
        )
        self._hub.send_all([member.name for member in workers], self._roll())
        if self._regrouping is not None:
            self._regrouping.begin({member.name: member.rank for member in workers})

    def _roll(self, name: str = "") -> Roll:
        """The roll, for one member or, without a name, for all."""
        servers = tuple((name, *at) for name, at in sorted(self._addresses.items()))
        over = self._regrouping is not None and self._regrouping.over
        if self._lease_service is not None:
            # Peers leave when the model is stored, and a successor would find none of them.
            service = self._lease_service
            over = service.has_ended if self._peers else service.is_over
        roll = Roll(self.membership.epoch, servers, over)
        if not self._peers or not name:
            return roll
        returns = name in self._returned or name in self._notices.expected
        about = {"notices": self._notices.current, "noted": len(self._notices)}
        return msgspec.structs.replace(roll, returns=returns, **about)

    def _note(self, name: str, beat: Beat) -> None:
        signs = self._servers if name in self._servers else self._signs
        sign = signs.get(name)
        if sign is None:
            return
        signs[name] = sign.followed(
            self._clock(), step=beat.step, phase=beat.phase, marks=beat.marks, line=beat.line
        )
        self._watch.note(sign, signs[name])
        if signs is self._servers:
            return
        self._samples[name] = beat.samples
        if beat.loss is not None:
            self._losses[name] = beat.loss
        # A worker under collectives asks for no samples: its phase shows that it has begun.
        if self._lease_service is None and beat.phase not in ("start", "join"):
            self._starting.discard(name)
        # A report of a former incarnation may come after its successor has joined.
        report = beat.group
        if self._regrouping is not None and report and report.life == self._greeted.get(name):
            for joined in self._regrouping.report(name, sign.member.rank, report):
                self._note_joined(self._signs[joined].member)

    def _note_joined(self, member: Member) -> None:
        """Note that a worker that replaces a lost one is in the group of the others."""
        self.membership = self.membership.joined(member)
        self._returned.add(member.name)
        self._recorder.event("returned", {"member": str(member)})

    def _note_goodbye(self, name: str, goodbye: Goodbye) -> None:
        if name == "agent-0":
            self._agent_left = self._clock()
            self._send_status()
            return
        if name in self._servers:
            del self._servers[name]
            return
        self._samples[name] = goodbye.samples
        # A request for samples that arrives after the goodbye must not announce a worker that has
        # left.
        self._notices.expected.discard(name)
        # None if the goodbye of a worker arrives that was counted as lost meanwhile: it has left
        # already.
        sign = self._signs.pop(name, None)
        if sign is not None:
            self.membership = self.membership.left(name)
            detail = {"member": str(sign.member), "epoch": str(self.membership.epoch)}
            self._recorder.event("left", detail)
            if self._regrouping is not None:
                self._regrouping.leave(name, failed=goodbye.failed)
        if not self._signs:
            self._dismiss_servers()

    def _dismiss_servers(self) -> None:
        """All workers have left, by their own account or, where that was lost, the agent's."""
        self._dismissed = True
        self._hub.send_all(self._servers, Dismiss())

    def _resend(self, name: str, beat: Beat) -> None:
        """Send again what a member has not confirmed, or what a restarted member cannot know."""
        for notice in self._notices.unconfirmed(beat.fences):
            self._hub.send(name, notice)
        # A server that was restarted after the last worker had left has not received the dismissal,
        # and would serve for ever (`tests/live/coordinator/test_incarnations.py`).
        if self._dismissed and name in self._servers:
            self._hub.send(name, Dismiss())

    def _fence(self, name: str) -> None:
        """Have all servers refuse calls of a lost worker; before the run begins there are none."""
        if self.membership.epoch:
            # Neither number alone suffices: the agent's report may name an incarnation that has not
            # said hello yet, and a host that is lost is reported without any number.
            least = max(self._incarnations.get(name, 0), self._greeted.get(name, 0) + 1)
            fence = self._notices.fence(name, least)
            self._hub.send_all((*self._servers, *self._signs), fence)

    def _lose(self, name: str, words: str) -> None:
        """Note that a worker is lost: its samples are leased again, its late calls refused."""
        self._signs.pop(name, None)
        self._waiting.pop(name, None)
        self._returned.discard(name)
        self.membership = self.membership.left(name)
        self._recorder.event("lost", {"member": name, "words": words})
        self._fence(name)
        if self._lease_service is not None:
            self._lease_service.lose(name)
        # Before all workers have joined there is no group that could change: its successor joins
        # the first one.
        if self._regrouping is not None and self.membership.epoch:
            self._regrouping.lose(name)

    def _check_timers(self) -> None:
        now = self._clock()
        if self._lease_service is not None and now - self._looked >= _RESEND_EVERY:
            self._looked = now
            self._lease_service.check_timers()
        if now - self._reported < _TELL_EVERY:
            return
        self._reported = now
        self._files.retry()
        if self._admission is not None:
            self._admission.check_timers(now)
        if self._regrouping is not None:
            self._regrouping.check_timers()
        self._account_samples()
        self._agent.look(now, begun=self.membership.epoch > 0)
        self._watch.warn(now, self._signs, self._servers)
        starting = self._starting | {
            name for name, sign in self._servers.items() if sign.phase == "start"
        }
        self._watch.eject(now, self._signs, self._servers, starting, self._agent_of)
        # After a restart the counts of collectives' workers are known from their heartbeats.
        if not self._unheard or now - self._resumed > _HEARD_WITHIN:
            self._send_status()
        # Before `_keep_short`, which notes that all records so far are in the trace.
        self._recorder.drain()
        self._keep_short()

    def _warn(self, words: str) -> None:
        self._hub.send("agent-0", Warn(words))
        self._agent.say_instead(words)

    def _keep_short(self) -> None:
        """Note that the trace is written, and shorten the journal if it is long."""
        if self._journal is not None:
            # A successor discards what its replay records up to this entry. Were it written before
            # the records, those of a coordinator that is killed between the two would be in no
            # trace.
            self._journal.note("", TraceWritten())
            if self._journal.is_long:
                service = self._lease_service
                self._journal.shorten(None if service is None else service.state())

    def _agent_of(self, member: Member) -> str:
        if self._admission is None or member.host == self._host:
            return "agent-0"
        return self._admission.agent_of(member.host)

    def _send_status(self) -> None:
        losses = self._losses.values()
        status = Status(
            epoch=self.membership.epoch,
            joined=len(self._waiting),
            expected=self._expected,
            samples=self._count_samples(),
            loss=sum(losses) / len(losses) if losses else None,
            started=self.membership.epoch > 0,
            phase=self._signs["worker-0"].phase if "worker-0" in self._signs else "",
            returned=tuple(sorted(self._returned)),
        )
        if self._admission is not None:
            status = self._admission.complete(status, {m.rank for m in self._waiting.values()})
        for name in ("agent-0", *(self._admission.agents if self._admission else ())):
            self._hub.send(name, status)

    def _account_samples(self) -> None:
        """Record samples that no worker counts, because it may be lost with its count."""
        if self._regrouping is not None:
            self._recorder.samples(*self._regrouping.account())

    def _count_samples(self) -> int:
        if self._lease_service is not None:
            return self._lease_service.committed
        if self._regrouping is not None:
            return self._regrouping.dealt
        return sum(self._samples.values())

    def disband(self, words: str) -> None:
        """Notify other hosts that the run has failed."""
        if self._admission is not None:
            self._admission.disband(Disband(failed=True, words=words))

    def pids(self) -> list[int]:
        """The process ids of this host's workers and servers that have not left."""
        signs = (*self._signs.values(), *self._servers.values())
        return [sign.member.pid for sign in signs if sign.member.host == self._host]
