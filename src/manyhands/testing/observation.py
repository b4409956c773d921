"""One simulated run under observation: laws are told of everything that happens in it.

The observer wraps methods of the run's own objects, public or not: nothing in `manyhands.virtual`
knows that it is observed, so a run is the same with and without laws.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from manyhands.failure import RunFailed, StateLost
from manyhands.testing.account import brief
from manyhands.testing.cases.formula import Formula
from manyhands.testing.codec_events import codec_events, connection, wrapped
from manyhands.testing.laws.law import (
    HOOKS,
    BrokenLawError,
    Law,
    Life,
    payload_values,
    values,
)
from manyhands.testing.laws.server_memory import ServerMemory
from manyhands.virtual.log import Logs
from manyhands.virtual.simulator.kernel import Kernel
from manyhands.virtual.worker.endpoint import VirtualEndpoint, caller
from manyhands.virtual.worker.replica import VirtualReplica
from manyhands.virtual.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from manyhands.leasing.lease_service import LeaseService
    from manyhands.leasing.leases import Lease
    from manyhands.parameters import Holder
    from manyhands.protocols import Action, Answer, Call, ServerState, StrategyProtocol, Terms
    from manyhands.testing.cases.case import Case
    from manyhands.virtual.log import WorkerLog
    from manyhands.virtual.server import Server
    from manyhands.virtual.simulator.member import VirtualProcess
    from manyhands.virtual.worker.endpoint import Parcel
    from manyhands.virtual.worker.shared_model import Replication

_MOST_CALLS: Final = 1_000
"""Calls of each worker after which a run is taken for one that never ends."""


class MemoryLogs(Logs):
    """Traces that are kept in memory."""

    def __init__(self, workers: int, kernel: Kernel) -> None:
        self.written: dict[str, list[bytes]] = {}
        self.lives: list[WorkerLog] = []
        """One for every incarnation of a worker."""
        super().__init__(Path(), workers, kernel)

    def worker(self, member: VirtualProcess, rank: int) -> WorkerLog:
        """The log of a new incarnation of a worker."""
        self.lives.append(super().worker(member, rank))
        return self.lives[-1]

    def _sink(self, name: str) -> Callable[[bytes], object]:
        return self.written.setdefault(name, []).append


@dataclass
class _ObservedDecisions:
    """A protocol on a server, whose decisions are reported."""

    inner: StrategyProtocol
    server: int
    observer: Observer

    def begin(self, terms: Terms) -> ServerState:
        return self.inner.begin(terms)

    def on_message(self, state: ServerState, call: Call) -> tuple[ServerState, list[Action]]:
        after, actions = self.inner.on_message(state, call)
        if self.observer.recovering:
            return after, actions
        parcel = self.observer.parcel
        size = self.observer.world._servers[f"server-{self.server}"].holder.shard.nbytes
        payload = None if parcel is None else payload_values(parcel.payload, size)
        self.observer.tell("decided", self.server, state, call, payload, after, tuple(actions))
        return after, actions

    def on_repeat(self, state: ServerState, call: Call) -> Answer:
        return self.inner.on_repeat(state, call)

    def on_leave(self, state: ServerState, worker: str) -> tuple[ServerState, list[Action]]:
        after, actions = self.inner.on_leave(state, worker)
        if self.observer.recovering:
            return after, actions
        self.observer.tell("left", self.server, worker, state, after, tuple(actions))
        return after, actions

    def on_return(self, state: ServerState, worker: str) -> ServerState:
        return self.inner.on_return(state, worker)


@dataclass
class Observer:
    """Tells laws what happens in a world."""

    world: World
    laws: Sequence[Law]
    parcel: Parcel | None = None
    """The call that is being decided."""
    sent: Any = None
    """The payload of the last answer."""
    recovering: bool = False
    """Whether a server decides again what is in its journal, which laws were told of."""
    within: bool = False
    """Whether an endpoint with codecs is posting, which was told of already."""
    lives: dict[str, Life] = field(default_factory=dict)
    """Incarnations of workers, by their names for servers; and, by name, those of now."""
    by_replication: dict[int, Life] = field(default_factory=dict)
    calls: int = 0
    joined: dict[str, float] = field(default_factory=dict)
    """By server of a worker that has returned, when others began to call it."""

    def __post_init__(self) -> None:
        self._hooks: dict[str, list[Callable[..., None]]] = {
            name: [
                getattr(law, name)
                for law in self.laws
                if getattr(type(law), name) is not getattr(Law, name)
            ]
            for name in HOOKS
        }
        for law in self.laws:
            law.kernel = self.world._kernel
        self._watch_workers()
        self._watch_leases()
        _wrap(self.world.coordinator, "_recovered", self._recovering)
        _wrap(self.world._logs.coordinator, "event", self._noting)
        for number, server in enumerate(self.world._servers.values()):
            self._watch_server(number, server)

    def tell(self, what: str, *words: object, **more: object) -> None:
        """Tell the laws of an event."""
        for hook in self._hooks[what]:
            try:
                hook(*words, **more)
            except BrokenLawError as error:
                error.law = error.law or type(getattr(hook, "__self__", hook)).__name__
                raise

    def _watch_workers(self) -> None:
        world = self.world

        def starting(start: Callable[[int], None]) -> Callable[[int], None]:
            def started(rank: int) -> None:
                start(rank)
                worker = world._workers[rank]
                name, replication, channel = worker.member.name, worker.replication, worker.channel
                if replication is None or channel is None:
                    raise RuntimeError(f"{name} was started without a replica")
                life = Life(caller(name, worker.member.life), name, rank, replication, channel)
                self.lives[life.sender] = self.lives[name + " now"] = life
                self.by_replication[id(replication)] = life
                if self._hooks["looked"]:
                    _wrap(replication, "look", lambda look: self._then(look, "looked", life))
                self.tell("started", life)

            return started

        def losing(lose: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
            def lost(worker: Any, life: int) -> None:
                new = life not in worker.missed
                lose(worker, life)
                if new:
                    self.tell("fenced", caller(worker.member.name, life))

            return lost

        def computing(gradient: Callable[..., Any]) -> Callable[..., Any]:
            def computed(replication: Replication, lease: Lease, objective: int = 0) -> Any:
                x = _whole(replication.seen or replication.parameters)
                self.tell("computed", self.by_replication[id(replication)], lease, x)
                return gradient(replication, lease, objective)

            return computed

        def applying(apply: Callable[..., None]) -> Callable[..., None]:
            def stepped(replication: Replication, weight: float, dealt: int) -> None:
                apply(replication, weight, dealt)
                life = self.by_replication[id(replication)]
                self.tell("stepped", life, _whole(replication.parameters))

            return stepped

        def joining(join: Callable[[str], None]) -> Callable[[str], None]:
            def joined(worker: str) -> None:
                before = set(world._peers.present)
                join(worker)
                for name in world._peers.present - before:
                    self.joined[name] = world._kernel.now

            return joined

        _wrap(world.coordinator, "on_arrival", joining)
        _wrap(world, "_start_worker", starting)
        _wrap(world, "_declare_lost", losing)
        _wrap(world._shared_model, "gradient", computing)
        if self._hooks["stepped"]:
            _wrap(world._shared_model, "apply", applying)

    def _then(self, do: Callable[[], None], what: str, *words: object) -> Callable[[], None]:
        def done() -> None:
            do()
            self.tell(what, *words)

        return done

    def _noting(self, event: Callable[..., None]) -> Callable[..., None]:
        def noted(what: str, detail: dict[str, str]) -> None:
            event(what, detail)
            self.tell("noted", what, detail)

        return noted

    def _recovering(self, recovered: Callable[[], LeaseService]) -> Callable[[], LeaseService]:
        """The service of a restarted coordinator must be as its predecessor's was.

        What it decides again was sent before: laws are not told of it a second time.
        """
        coordinator = self.world.coordinator

        def made() -> LeaseService:
            before = coordinator._service.state()
            coordinator._service = service = recovered()
            now = service.state()
            if now != before:
                words = f"the lease service was at {before}, and its successor is at {now}"
                raise BrokenLawError(words, law="Recovery")
            self._watch_leases()
            return service

        return made

    def _watch_leases(self) -> None:
        coordinator = self.world.coordinator
        leases = coordinator.leases

        def taking(take: Callable[[str], object]) -> Callable[[str], object]:
            def taken(worker: str) -> object:
                found = take(worker)
                if not isinstance(found, str):
                    self.tell("leased", worker, found)
                return found

            return taken

        def ending(what: str) -> Callable[[Any], Any]:
            def wrapper(end: Callable[..., bool]) -> Callable[..., bool]:
                def ended(worker: str, number: int, *seconds: float) -> bool:
                    accepted = end(worker, number, *seconds)
                    self.tell(what, self.lives[worker + " now"], number, accepted=accepted)
                    return accepted

                return ended

            return wrapper

        def giving_back(give_back: Callable[[str], int]) -> Callable[[str], int]:
            def gave_back(worker: str) -> int:
                samples = give_back(worker)
                channel = coordinator._channels.get(worker)
                alive = channel is not None and channel.is_alive and not channel.is_cut_off
                self.tell("gave_back", worker, samples, alive=alive)
                return samples

            return gave_back

        _wrap(leases, "take", taking)
        _wrap(leases, "commit", ending("committed"))
        _wrap(leases, "forgo", ending("forwent"))
        _wrap(leases, "give_back", giving_back)
        _wrap(leases, "stop", lambda stop: self._then(stop, "stopped"))

    def _watch_server(self, number: int, server: Server) -> None:
        def deciding(decide: Callable[[Parcel], None]) -> Callable[[Parcel], None]:
            def decided(parcel: Parcel) -> None:
                self.parcel = parcel
                decide(parcel)
                self.tell("settled", number, values(server.holder.bytes))

            return decided

        def fencing(fence: Callable[[str, int], None]) -> Callable[[str, int], None]:
            def fenced(worker: str, least: int) -> None:
                fence(worker, least)
                self.tell("settled", number, values(server.holder.bytes))

            return fenced

        def replying(reply: Callable[[Parcel, Answer], None]) -> Callable[[Parcel, Answer], None]:
            def replied(parcel: Parcel, answer: Answer) -> None:
                reply(parcel, answer)
                if not parcel.endpoint.is_dead:
                    # Under codecs laws are told of what was encoded.
                    coded = server.coded is not None
                    sent = payload_values(answer.payload(server.holder) if coded else self.sent)
                    key = (parcel.sender, parcel.number)
                    self.tell("replied", number, key, answer.message, sent)

            return replied

        def making(payload: Callable[[Answer], Any]) -> Callable[[Answer], Any]:
            def made(answer: Answer) -> Any:
                self.sent = payload(answer)
                return self.sent

            return made

        def beginning(begin_anew: Callable[..., None]) -> Callable[..., None]:
            def began_anew(holder: Holder, *losses: object) -> None:
                begin_anew(holder, *losses)
                self.tell("began_anew", number, values(holder.bytes))

            return began_anew

        before = ServerMemory.of(server)

        def crashing(crash: Callable[[], None]) -> Callable[[], None]:
            def crashed() -> None:
                nonlocal before
                crash()
                before = ServerMemory.of(server)

            return crashed

        def restoring(recover: Callable[..., None]) -> Callable[..., None]:
            def restored(holder: Holder, *coded: object) -> None:
                self.recovering = True
                recover(holder, *coded)
                self.recovering = False
                before.compare(ServerMemory.of(server), server.name)
                self.tell("restored", number, {**server._heard})

            return restored

        _wrap(server, "crash", crashing)
        _wrap(server, "recover", restoring)
        _wrap(server, "begin_anew", beginning)
        _wrap(server, "_protocol", lambda inner: _ObservedDecisions(inner, number, self))
        _wrap(server, "_decide", deciding)
        _wrap(server, "fence", fencing)
        _wrap(server, "_payload", making)
        _wrap(server, "_reply", replying)

    @contextlib.contextmanager
    def endpoints(self) -> Iterator[None]:
        """Observe what endpoints send and receive, and when replicas read for an evaluation."""

        def posting(post: Callable[..., None]) -> Callable[..., None]:
            def posted(
                endpoint: Any, to: str, message: Any, payload: Any = None, into: Any = None
            ) -> None:
                if not endpoint.is_dead:
                    self._count_call()
                    sent = payload_values(payload)
                    if not self.within:
                        self.tell("posted", self.lives[endpoint.caller], int(to[7:]), message, sent)
                post(endpoint, to, message, payload, into)

            return posted

        def taking(take: Callable[..., None]) -> Callable[..., None]:
            def took(
                endpoint: Any, parcel: Parcel, message: Any, payload: Any, held: float
            ) -> None:
                name = parcel.server.name
                told = not endpoint.is_dead and parcel in endpoint._lines[name].calls
                if told and connection(endpoint, name) is None:
                    life, number = self.lives[endpoint.caller], int(name[7:])
                    kept = None if parcel.into is None else payload_values(payload)
                    beside = any(parcel.into is room for room in life.replication.beside)
                    self.tell("took", life, number, message, kept, beside=beside)
                take(endpoint, parcel, message, payload, held)

            return took

        def reading(look_up: Callable[..., Any]) -> Callable[..., Any]:
            async def looked_up(replica: VirtualReplica, cut: Any) -> None:
                life = self.by_replication[id(replica.replication)]
                self.tell("looks_up", life)
                await look_up(replica, cut)
                self.tell("looked_up", life)

            return looked_up

        with (
            codec_events(self),
            wrapped(VirtualEndpoint, "post", posting),
            wrapped(VirtualEndpoint, "take", taking),
            wrapped(VirtualReplica, "_refresh", reading),
        ):
            yield

    def _count_call(self) -> None:
        self.calls += 1
        if self.calls > _MOST_CALLS * len(self.world._workers):
            raise BrokenLawError(
                f"workers have made {self.calls:,} calls after {self.world._kernel.now:g} s, and "
                "the run is not over",
                law="Progress",
            )

    def check_state_lost(self, failure: StateLost) -> None:
        """A run may end so only if no worker that others called was alive until then.

        One that was called from this very moment on was asked too early.
        """
        world, now = self.world, self.world._kernel.now
        for server in world._servers.values():
            lived = server.member.died(server.member.life) >= now
            known = server.name in world._peers.present and self.joined.get(server.name) != now
            if lived and known:
                words = f"{failure}; but {server.name} has them"
                raise BrokenLawError(words, law="Progress") from failure

    def waiting(self) -> str:
        """Which calls no server has answered, for a run that does not end."""
        open_calls = [
            f"{server.name} has not answered call {number} of {sender}, {brief(parcel.message)}"
            for server in self.world._servers.values()
            for (sender, number), parcel in server._open.items()
            if not parcel.endpoint.is_dead
        ]
        names = [member.name for member in self.world._kernel.running]
        return "; ".join(open_calls) or f"running: {', '.join(names) or 'no process'}"


def run(case: Case, laws: Sequence[Callable[[Case], Law]]) -> str:
    """Run a case under laws; return a digest of the whole run.

    Raises:
        BrokenLawError: a law was broken, or the run did not end.
        Exception: the protocol raised an error.
    """
    # Seeding devices that do not exist costs a millisecond, and torch draws nothing here.
    with wrapped(torch, "manual_seed", lambda _: torch.default_generator.manual_seed):
        return _run(case, laws)


def _run(case: Case, laws: Sequence[Callable[[Case], Law]]) -> str:
    kernel = Kernel()
    logs = MemoryLogs(case.workers, kernel)
    world = World(
        case.job, case.protocol, case.places, case.conditions, kernel, logs, Formula(case)
    )
    observer = Observer(world, [law(case) for law in laws])
    for fault in case.faults.faults:
        world.expect(fault)

    def overdue() -> None:
        words = f"the run is not over after {case.deadline:g} s, long after its last fault"
        kernel.fail(BrokenLawError(f"{words}: {observer.waiting()}", law="Progress"))

    kernel.after(case.deadline, overdue)
    ends = True
    with observer.endpoints():
        world.begin()
        try:
            kernel.run()
        except StateLost as failure:
            observer.check_state_lost(failure)
            ends = False
        except RunFailed as failure:
            raise BrokenLawError(str(failure), law="Progress") from failure
    logs.flush()
    if ends:
        observer.tell("ended", world)
    found = hashlib.sha256(repr((kernel.now, world.versions)).encode())
    for part in world._common or [server.holder.bytes for server in world._servers.values()]:
        found.update(part.numpy().tobytes())
    for name, lines in sorted(logs.written.items()):
        found.update(name.encode() + b"".join(lines))
    return found.hexdigest()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread, so that sums do not depend on their number; collect garbage rarely.

    Torch's random generator is the same afterwards as before.
    """
    threads, thresholds = torch.get_num_threads(), gc.get_threshold()
    torch.set_num_threads(1)
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
        torch.set_num_threads(threads)


def _whole(shards: Sequence[torch.Tensor]) -> NDArray[np.float64]:
    return np.concatenate([values(part) for part in shards])


def _wrap(owner: object, name: str, wrapper: Callable[[Any], Any]) -> None:
    """Replace an attribute of an object by what `wrapper` makes of it."""
    setattr(owner, name, wrapper(getattr(owner, name)))
