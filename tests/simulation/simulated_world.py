"""One simulated run, watched: laws hear of everything that happens in it."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import numpy as np
import torch
from simulated_case import Case, Formula
from simulated_events import HOOKS, BrokenLawError, Law, Life, values

from manyhands.virtual.log import Logs
from manyhands.virtual.simulator.kernel import Kernel
from manyhands.virtual.worker.endpoint import VirtualEndpoint, caller
from manyhands.virtual.worker.replica import VirtualReplica
from manyhands.virtual.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from manyhands.leasing.leases import Lease
    from manyhands.parameters import Holder
    from manyhands.protocols import Action, Answer, Call, ServerState, StrategyProtocol, Terms
    from manyhands.virtual.log import WorkerLog
    from manyhands.virtual.server import Server
    from manyhands.virtual.simulator.member import VirtualProcess
    from manyhands.virtual.worker.endpoint import Parcel
    from manyhands.virtual.worker.shared_model import Replication


class Memory(Logs):
    """Traces that are kept in memory."""

    def __init__(self, workers: int, kernel: Kernel) -> None:
        self.written: dict[str, list[bytes]] = {}
        self.lives: list[WorkerLog] = []
        """One for every life of a worker."""
        super().__init__(Path(), workers, kernel)

    def worker(self, member: VirtualProcess, rank: int) -> WorkerLog:
        self.lives.append(super().worker(member, rank))
        return self.lives[-1]

    def _sink(self, name: str) -> Callable[[bytes], object]:
        return self.written.setdefault(name, []).append


@dataclass
class _Listening:
    """A protocol on a server, and somebody who listens."""

    inner: StrategyProtocol
    server: int
    watch: Watch

    def begin(self, terms: Terms) -> ServerState:
        return self.inner.begin(terms)

    def on_message(self, state: ServerState, call: Call) -> tuple[ServerState, list[Action]]:
        after, actions = self.inner.on_message(state, call)
        self.watch.tell(
            "decided", self.server, state, call, self.watch.payload, after, tuple(actions)
        )
        return after, actions

    def on_repeat(self, state: ServerState, call: Call) -> Answer:
        return self.inner.on_repeat(state, call)

    def on_leave(self, state: ServerState, worker: str) -> tuple[ServerState, list[Action]]:
        after, actions = self.inner.on_leave(state, worker)
        self.watch.tell("left", self.server, worker, state, after, tuple(actions))
        return after, actions


SERVICE_CALLS = ("admit", "hear", "lose", "stop")
"""What changes the state of the service, and so must be written down for a successor."""


@dataclass
class Watch:
    """Whoever tells the laws what happens in a world."""

    world: World
    laws: Sequence[Law]
    payload: np.ndarray | None = None
    """What came with the call that is being decided about."""
    lives: dict[str, Life] = field(default_factory=dict)
    by_replication: dict[int, Life] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._hooks = {
            name: [
                getattr(law, name)
                for law in self.laws
                if getattr(type(law), name) is not getattr(Law, name)
            ]
            for name in HOOKS
        }
        self._watch_workers()
        self._heard: list[tuple[str, tuple[object, ...]]] = []
        """All that the service was told."""
        self._watch_service()
        for number, server in enumerate(self.world._servers.values()):
            self._watch_server(number, server)

    def tell(self, what: str, *words: object, **more: object) -> None:
        for hook in self._hooks[what]:
            hook(*words, **more)

    def _watch_workers(self) -> None:
        world, start, miss = self.world, self.world._start_worker, self.world._declare_lost
        gradient, apply = world._shared_model.gradient, world._shared_model.apply

        def started(rank: int) -> None:
            start(rank)
            worker = world._workers[rank]
            name = worker.member.name
            life = Life(
                caller(name, worker.member.life), name, rank, worker.replication, worker.channel
            )
            self.lives[life.sender] = self.lives[name + " now"] = life
            self.by_replication[id(worker.replication)] = life
            if self._hooks["looked"]:
                self._watch_looking(life)
            self.tell("started", life)

        def missed(worker: object, life: int) -> None:
            new = life not in worker.missed
            miss(worker, life)
            if new:
                self.tell("fenced", caller(worker.member.name, life))

        def computed(replication: Replication, lease: Lease) -> tuple[float, list[int]]:
            seen = replication.seen or replication.parameters
            x = np.concatenate([values(part) for part in seen])
            self.tell("computed", self.by_replication[id(replication)], lease, x)
            return gradient(replication, lease)

        def stepped(replication: Replication, weight: float, dealt: int) -> None:
            apply(replication, weight, dealt)
            x = np.concatenate([values(part) for part in replication.parameters])
            self.tell("stepped", self.by_replication[id(replication)], x)

        world._start_worker, world._declare_lost = started, missed
        world._shared_model.gradient = computed
        if self._hooks["stepped"]:
            world._shared_model.apply = stepped

    def _watch_looking(self, life: Life) -> None:
        look = life.replication.look

        def looked() -> None:
            look()
            self.tell("looked", life)

        life.replication.look = looked

    def _watch_service(self) -> None:
        service = self.world.coordinator._service
        self._watch_leases()
        for name in SERVICE_CALLS:
            setattr(service, name, self._remembered(name, getattr(service, name)))
        # An evaluation that reaches the target ends the run by the book alone.
        service.leases.stop = self._remembered("enough", service.leases.stop)

    def _remembered(self, name: str, tell: Callable[..., object]) -> Callable[..., object]:
        def told(*words: object) -> object:
            self._heard.append((name, words))
            return tell(*words)

        return told

    def replace_service(self) -> None:
        """Its process dies; a successor knows what it was told, and nothing else.

        What it answered has been sent already. The laws have heard of it, and hear nothing twice.
        """
        coordinator, heard = self.world.coordinator, self._heard
        before = (coordinator.leases.committed, coordinator.leases.held, coordinator.is_over)
        coordinator._service = service = coordinator._new_service()
        for name, words in heard:
            (service.leases.stop if name == "enough" else getattr(service, name))(*words)
        now = (coordinator.leases.committed, coordinator.leases.held, coordinator.is_over)
        if now != before:
            raise BrokenLawError(f"the service was at {before}, its successor is at {now}")
        self._watch_service()

    def _watch_leases(self) -> None:
        book, workers = self.world.coordinator.leases, self.world._workers
        take, commit, forgo = book.take, book.commit, book.forgo
        give_back, stop = book.give_back, book.stop

        def taken(worker: str) -> object:
            found = take(worker)
            if not isinstance(found, str):
                self.tell("leased", worker, found)
            return found

        def committed(worker: str, number: int) -> bool:
            accepted = commit(worker, number)
            self.tell("committed", self.lives[worker + " now"], number, accepted=accepted)
            return accepted

        def forwent(worker: str, number: int) -> bool:
            accepted = forgo(worker, number)
            self.tell("forwent", self.lives[worker + " now"], number, accepted=accepted)
            return accepted

        def given_back(worker: str) -> int:
            samples = give_back(worker)
            one = workers[int(worker.partition("-")[2])]
            alive = one.member.alive and not one.channel.is_cut_off
            self.tell("gave_back", worker, samples, alive=alive)
            return samples

        def stopped() -> None:
            stop()
            self.tell("stopped")

        book.take, book.commit, book.forgo = taken, committed, forwent
        book.give_back, book.stop = given_back, stopped

    def _watch_server(self, number: int, server: Server) -> None:
        decide, fence, reply = server._decide, server.fence, server._reply
        begin_anew = server.begin_anew

        def decided(parcel: Parcel) -> None:
            self.payload = None if parcel.payload is None else values(parcel.payload)
            decide(parcel)
            self.tell("settled", number, values(server.holder.bytes))

        def fenced(worker: str, least: int) -> None:
            fence(worker, least)
            self.tell("settled", number, values(server.holder.bytes))

        def replied(parcel: Parcel, answer: Answer) -> None:
            reply(parcel, answer)
            if not parcel.endpoint.is_dead:
                payload = server._payload(answer)
                key, sent = (
                    (parcel.sender, parcel.number),
                    None if payload is None else values(payload),
                )
                self.tell("replied", number, key, answer.message, sent)

        def began_anew(holder: Holder) -> None:
            begin_anew(holder)
            self.tell("began_anew", number, values(holder.bytes))

        server.begin_anew = began_anew
        server._protocol = _Listening(server._protocol, number, self)
        server._decide, server.fence, server._reply = decided, fenced, replied

    @contextlib.contextmanager
    def endpoints(self) -> Iterator[None]:
        """Hear of what endpoints send and accept, and when replicas are looked at."""
        post, take, look_up = VirtualEndpoint.post, VirtualEndpoint.take, VirtualReplica._refresh

        def posted(endpoint, to, message, payload=None, into=None) -> None:
            if not endpoint.is_dead:
                sent = None if payload is None else values(payload)
                self.tell("posted", self.lives[endpoint.caller], int(to[7:]), message, sent)
            post(endpoint, to, message, payload, into)

        def took(endpoint, parcel, message, payload, held) -> None:
            name = parcel.server.name
            if not endpoint.is_dead and parcel in endpoint._lines[name].calls:
                life, number = self.lives[endpoint.caller], int(name[7:])
                kept = None if payload is None or parcel.into is None else values(payload)
                beside = any(parcel.into is room for room in life.replication.beside)
                self.tell("took", life, number, message, kept, beside=beside)
            take(endpoint, parcel, message, payload, held)

        async def looked_up(replica, cut) -> None:
            life = self.by_replication[id(replica.replication)]
            self.tell("looks_up", life)
            await look_up(replica, cut)
            self.tell("looked_up", life)

        VirtualEndpoint.post, VirtualEndpoint.take = posted, took
        VirtualReplica._refresh = looked_up
        try:
            yield
        finally:
            VirtualEndpoint.post, VirtualEndpoint.take = post, take
            VirtualReplica._refresh = look_up


def run(case: Case, laws: Sequence[Callable[[Case], Law]]) -> str:
    """Run a case under laws; a fingerprint of the run.

    Raises:
        Exception: a law was broken, or the run failed or did not end.
    """
    # Seeding devices that are not there costs a millisecond, and nothing here is drawn by torch.
    with mock.patch.object(torch, "manual_seed", torch.default_generator.manual_seed):
        return _run(case, laws)


def _run(case: Case, laws: Sequence[Callable[[Case], Law]]) -> str:
    kernel = Kernel()
    logs = Memory(case.workers, kernel)
    world = World(
        case.job, case.protocol, case.places, case.conditions, kernel, logs, Formula(case)
    )
    watch = Watch(world, [law(case) for law in laws])
    for fault in case.faults.faults:
        world.expect(fault)
    for moment in case.service_replaced:
        kernel.after(moment, watch.replace_service)
    words = f"the run is not over {case.deadline:g} s after its begin, long after its last fault"
    kernel.after(case.deadline, lambda: kernel.fail(BrokenLawError(words)))
    with watch.endpoints():
        world.begin()
        kernel.run()
    logs.flush()
    watch.tell("ended", world)
    found = hashlib.sha256(repr((kernel.now, world.versions)).encode())
    for part in world._common or [server.holder.bytes for server in world._servers.values()]:
        found.update(part.numpy().tobytes())
    for name, lines in sorted(logs.written.items()):
        found.update(name.encode() + b"".join(lines))
    return found.hexdigest()
