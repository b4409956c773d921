# ruff: noqa: ARG005 - what is broken looks at less than what is right
"""Would the laws notice? Each of these breaks one piece on purpose, and must be caught."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from unittest import mock

import msgspec
import pytest
from simulated_variants import BY_NAME

from manyhands.codecs import ErrorFeedback
from manyhands.leasing.fences import Fences
from manyhands.leasing.lease_journal import LeaseJournal
from manyhands.leasing.lease_service import LeaseService
from manyhands.leasing.leases import Leases
from manyhands.parameters import Holder, UpdateCounts
from manyhands.protocols import (
    Add,
    Answer,
    Asynchronous,
    Averaging,
    Broadcast,
    CentralStorage,
    DiLoCo,
    ElasticAveraging,
    Ensemble,
    Gossip,
    Move,
    PushSum,
    Scale,
    Shift,
    SoftSync,
    StaleSynchronous,
    Step,
    StrategyProtocol,
    asynchronous,
    broadcast,
    easgd,
    softsync,
)
from manyhands.protocols.compression.connection import SharedPushes
from manyhands.protocols.compression.shard import CodedShard
from manyhands.protocols.gossip import gossip, lockstep, push_sum, shares
from manyhands.protocols.hierarchical import inner_server, inner_sum, outer_sum
from manyhands.protocols.hierarchical import worker as hierarchical_worker
from manyhands.protocols.parts import streaming
from manyhands.protocols.parts.rounds import Rounds
from manyhands.protocols.synchronous import SynchronousRounds
from manyhands.virtual import world
from manyhands.virtual.coordinator import LeaseChannel, VirtualCoordinator
from manyhands.virtual.server import Server
from manyhands.virtual.worker.replica import VirtualReplica
from manyhands.virtual.worker.shared_model import Replication
from manyhands.virtual.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

SEEDS = 1000


@dataclass(frozen=True)
class Mutant:
    """One piece, broken."""

    name: str
    variant: str
    """Where it shows."""
    owner: object
    attribute: str
    broken: Callable[[Any], object]
    """What takes the place of the piece, made of it."""


def bound_off_by_one(right):
    return lambda self, *given: right(replace(self, staleness=self.staleness + 1), *given)


def applied_twice(right):
    def on_message(self, state, call):
        state, actions = right(self, state, call)
        return state, [*(a for a in actions if isinstance(a, Step)), *actions]

    return on_message


def fence_forgotten(right):
    def fence(self, worker, least):
        right(self, worker, least)
        self._fences = Fences()

    return fence


def weights_ignored(right):
    return lambda self, state, call, samples: [Add(call, 1.0)] if samples else []


def late_twice(right):
    def gather(self, state, call, samples):
        actions = right(self, state, call, samples)
        return actions * 2 if call.message.version < state.version else actions

    return gather


def one_is_enough(right):
    return property(lambda self: 1)


def nobody_leaves(right):
    return lambda self, state, worker: (state, [])


def gone_stand_for_those_who_are_back(right):
    def on_leave(self, state, worker):
        return self._close(replace(state, present=state.present - {worker}), [])

    return on_leave


def skips_somebody(right):
    def next_turn(state, actions):
        skipped = state.last + 1 if state.busy is None and state.version == 2 else state.last
        return right(replace(state, last=skipped), actions)

    return next_turn


def version_of_before(right):
    def on_message(self, state, call):
        after, actions = right(self, state, call)
        old = replace_version(actions, state.version)
        return after, old

    return on_message


def replace_version(actions, version):
    return [
        replace(a, message=type(a.message)(version)) if isinstance(a, Answer) else a
        for a in actions
    ]


def pushed_away(right):
    return lambda self, by: right(self, -by)


def centre_pushed_away(right):
    def conclude(self, state):
        return [replace(a, by=-a.by) if isinstance(a, Move) else a for a in right(self, state)]

    return conclude


def resends_heard_again(right):
    def decide(self, parcel):
        if (parcel.sender, parcel.number) not in self._open:
            self._heard[parcel.sender] = parcel.number - 1
        right(self, parcel)

    return decide


def never_given_again(right):
    def give_back(self, worker):
        samples = right(self, worker)
        self._returned.clear()
        return samples

    return give_back


def old_parameters_sent(right):
    def carry_out(self, action):
        before = self._sending
        right(self, action)
        if isinstance(action, Step):
            self._sending = before

    return carry_out


def momentum_forgotten(right):
    return lambda self, over, rate, momentum: right(self, over, rate, 0.0)


def undamped(right):
    return lambda kind, staleness, usual: 1.0


def for_its_samples(right):
    return lambda self, state: state.weight


def drops_are_applied(right):
    return super(SoftSync, SoftSync).on_repeat


def steps_for_all(right):
    return lambda self, batch, counts=None: right(self, batch)


def does_not_look(right):
    return lambda self: None


def is_not_counted(right):
    return lambda self, rank: None


def lies_open_elsewhere(right):
    async def refresh(self, replica, endpoint):
        replica.servers = replica.servers[1:] + replica.servers[:1]
        return await right(self, replica, endpoint)

    return refresh


def like_the_first(right):
    return lambda seed, rank: seed


def goes_on_where_it_was(right):
    async def refresh(self, replica, endpoint):
        return [replica.versions[0]]

    return refresh


def as_it_is_now(right):
    return lambda self, state, call: super(Gossip, self).on_repeat(state, call)


def all_the_way(right):
    return lambda self, by: right(self, 1.0 if by == 0.5 else by)


def weights_of_those_there(right):
    return lambda state, call, ranks, weights: right(state, call, ranks, 1 + len(ranks))


def whoever_gave_is_there(right):
    return lambda state, worker: (replace(state, awaited=state.awaited - {worker}), [])


def takes_whatever_comes(right):
    def offer(state, call):
        state, actions = right(state, call)
        return state, [
            replace(a, message=type(a.message)(0)) if isinstance(a, Answer) else a for a in actions
        ]

    return offer


def keeps_what_it_gives(right):
    def on_message(self, state, call):
        state, actions = right(self, state, call)
        return state, [action for action in actions if not isinstance(action, Scale)]

    return on_message


def added_twice(right):
    def on_message(self, state, call):
        state, actions = right(self, state, call)
        return state, [*(a for a in actions if isinstance(a, Shift)), *actions]

    return on_message


def never_late(right):
    return lambda self, state, call: False


def from_zero(right):
    async def _begin(self, protocol):
        await right(self, protocol)
        for fragment in self._fragments:
            fragment.round = 0

    return _begin


def never_encoded_before(right):
    return lambda self, number: None


def for_its_part(right):
    return lambda state, action, pushes: action


def stays_at_home(right):
    async def carry(self, said):
        del said

    return carry


def every_sum_is_new(right):
    return lambda state, call: False


def what_was_read_is_new(right):
    return lambda state, join: False


def multiplied_again(right):
    return lambda self, state, call, share: [Add(call, share)] if share else []


def whatever_there_is_room_for(right):
    return lambda self, state, call: right(self, state, replace(call, room=True))


def appointed_once(right):
    def appoint(self):
        if self.is_over or not getattr(self, "appointed", False):
            right(self)
            self.appointed = self._storing is not None

    return appoint


def forgets_who_waits(right):
    def call_cut(self):
        right(self)
        self._waiting.clear()

    return call_cut


def the_lost_are_heard(right):
    def hear(self, channel, message):
        self._service._hear(channel.worker, message)
        self._pass_on(self._service._take_letters())

    return hear


def not_written(what, every=1):
    """The coordinator's journal leaves out inputs of a kind."""

    def broken(right):
        def note(self, service, taken):
            self.noted = getattr(self, "noted", 0) + (taken.what == what)
            if taken.what != what or self.noted % every:
                right(self, service, taken)

        return note

    return broken


def without(field, empty=()):
    """A snapshot of the lease service that leaves out a part."""

    def broken(right):
        def restore(self, state):
            right(self, msgspec.structs.replace(state, **{field: empty}))

        return restore

    return broken


def said_before(right):
    """Workers forget what they said to a coordinator that has crashed."""

    def reconnect(self):
        self._unheard.clear()

    return reconnect


def is_told_nothing(right):
    def start(self, server):
        server.told = len(self._losses)
        right(self, server)

    return start


def residual_dropped(right):
    def encode(self, update, seed=0):
        payload = right(self, update, seed)
        if self.residual is not None:
            self.residual.zero_()
        return payload

    return encode


def residual_sent_twice(right):
    def encode(self, update, seed=0):
        before = self.residual
        return right(self, update if before is None else update + before, seed)

    return encode


def reference_of_before(right):
    def encode(self, base, source):
        frame, after = right(self, base, source)
        return frame, after if base is None else base

    return encode


def parameters_as_reference(right):
    def encode(self, base, source):
        frame, _ = right(self, base, source)
        return frame, source.clone()

    return encode


def begins_from_the_start(right):
    async def copy_another(replica, endpoint):
        del replica, endpoint

    return copy_another


def given_and_kept(right):
    def give(state, call):
        after, actions = right(state, call)
        return replace(after, mass=state.mass), actions

    return give


def given_anew(right):
    def give_again(state, call):
        said = right(state, call)
        return replace(said, recall=False)

    return give_again


def called_at_once(right):
    def bring_back(self, rank):
        right(self, rank)
        self._peers.join(f"worker-{rank}")

    return bring_back


def never_called_again(right):
    return lambda self, worker: None


def decoded_as_if_whole(right):
    def base(self, call, frame):
        right(self, call, frame)

    return base


MUTANTS = (
    Mutant("residual dropped", "asynchronous_coded", ErrorFeedback, "encode", residual_dropped),
    Mutant("residual sent twice", "diloco_coded", ErrorFeedback, "encode", residual_sent_twice),
    Mutant(
        "applied twice under codecs", "ssp_coded", StaleSynchronous, "on_message", applied_twice
    ),
    Mutant("reference of before", "ssp_coded", CodedShard, "_encode", reference_of_before),
    Mutant("parameters as reference", "ssp_coded", CodedShard, "_encode", parameters_as_reference),
    Mutant("difference taken whole", "averaging_coded", CodedShard, "_base", decoded_as_if_whole),
    Mutant("bound off by one", "ssp", StaleSynchronous, "_release", bound_off_by_one),
    Mutant("applied twice", "asynchronous", Asynchronous, "on_message", applied_twice),
    Mutant("fence forgotten", "asynchronous", Server, "fence", fence_forgotten),
    Mutant("weights ignored", "averaging", Averaging, "gather", weights_ignored),
    Mutant("late update added twice", "softsync", SynchronousRounds, "gather", late_twice),
    Mutant("answered too early", "synchronous", Rounds, "needed", one_is_enough),
    Mutant("the departed waited for", "synchronous", Rounds, "on_leave", nobody_leaves),
    Mutant(
        "the departed stand in", "averaging", Rounds, "on_leave", gone_stand_for_those_who_are_back
    ),
    Mutant("turn skipped", "easgd_round_robin", easgd, "next_turn", skips_somebody),
    Mutant("version of before", "asynchronous", Asynchronous, "on_message", version_of_before),
    Mutant("worker pushed away", "easgd_asynchronous", VirtualReplica, "draw", pushed_away),
    Mutant(
        "centre pushed away", "easgd_parallel", ElasticAveraging, "conclude", centre_pushed_away
    ),
    Mutant("resends heard again", "asynchronous", Server, "_decide", resends_heard_again),
    Mutant("lease never given again", "asynchronous", Leases, "give_back", never_given_again),
    Mutant("old parameters sent", "ssp", Server, "_carry_out", old_parameters_sent),
    Mutant("momentum forgotten", "diloco", Holder, "descend", momentum_forgotten),
    Mutant("damping forgotten", "asynchronous", asynchronous, "damp", undamped),
    Mutant("damping forgotten in rounds", "softsync", softsync, "damp", undamped),
    Mutant("a round for its part", "softsync", SoftSync, "weigh", for_its_samples),
    Mutant(
        "what was dropped is committed", "softsync_drop", SoftSync, "on_repeat", drops_are_applied
    ),
    Mutant("a step for all", "hogwild", VirtualReplica, "apply", steps_for_all),
    Mutant("reads while it computes", "hogwild", Replication, "look", does_not_look),
    Mutant("a write not counted", "hogwild", UpdateCounts, "add", is_not_counted),
    Mutant("laid open elsewhere", "ensemble", Ensemble, "refresh", lies_open_elsewhere),
    Mutant("all begin alike", "ensemble", world, "member_seed", like_the_first),
    Mutant("reads unseen", "central_storage", CentralStorage, "refresh", goes_on_where_it_was),
    Mutant("meeting told anew", "gossip_asynchronous", Gossip, "on_repeat", as_it_is_now),
    Mutant("mass lost", "gossip_asynchronous", VirtualReplica, "trade", all_the_way),
    Mutant("weights of those there", "gossip_lockstep", lockstep, "_mix", weights_of_those_there),
    Mutant("refusals withheld", "gossip_lockstep", lockstep, "_offer", takes_whatever_comes),
    Mutant("what is given is kept", "push_sum", PushSum, "on_message", keeps_what_it_gives),
    Mutant("merged whole", "diloco_streaming", streaming, "MIX", lambda right: 1.0),
    Mutant("late ones wait", "diloco_quorum", DiLoCo, "is_late", never_late),
    Mutant("parts in any order", "diloco_streaming", streaming.Streamer, "_begin", from_zero),
    Mutant("encoded for each", "broadcast", SharedPushes, "frame", never_encoded_before),
    Mutant("broadcast added twice", "broadcast", Broadcast, "on_message", added_twice),
    Mutant("mass without a limit", "push_sum_straggler", shares, "LEAST", lambda right: 0.0),
    Mutant("a step for its part", "hierarchical", inner_server, "_weigh", for_its_part),
    Mutant(
        "stays at home", "hierarchical", hierarchical_worker.InnerWorker, "_carry", stays_at_home
    ),
    Mutant("sums counted twice", "hierarchical_sums", outer_sum, "_counts", every_sum_is_new),
    Mutant("a lost sum forgotten", "hierarchical_sums", inner_sum, "_is_old", what_was_read_is_new),
    Mutant("sums weighed", "hierarchical_sums", outer_sum.OuterSum, "gather", multiplied_again),
    Mutant(
        "answered again without room",
        "synchronous",
        StrategyProtocol,
        "on_repeat",
        whatever_there_is_room_for,
    ),
    Mutant("half answered again", "push_sum", PushSum, "on_repeat", whatever_there_is_room_for),
    Mutant("stored by one only", "asynchronous", LeaseService, "_appoint", appointed_once),
    Mutant("an evaluation forgets", "asynchronous", LeaseService, "_call_cut", forgets_who_waits),
    Mutant("the lost are heard", "diloco", VirtualCoordinator, "hear", the_lost_are_heard),
    Mutant("losses not written down", "asynchronous", LeaseJournal, "note", not_written("lose")),
    Mutant("few not written", "asynchronous", LeaseJournal, "note", not_written("hear", 7)),
    Mutant("arrivals not written", "diloco", LeaseJournal, "note", not_written("admit")),
    Mutant("stops not written", "ssp", LeaseJournal, "note", not_written("stop")),
    Mutant("waiting not stored", "synchronous", LeaseService, "restore", without("waiting")),
    Mutant("held not stored", "asynchronous", Leases, "restore", without("held")),
    Mutant("given back not stored", "asynchronous", Leases, "restore", without("returned")),
    Mutant("words forgotten", "asynchronous", LeaseChannel, "reconnect", said_before),
    Mutant("fences unsent", "synchronous", World, "_start_server", is_told_nothing),
    Mutant("begun anew", "gossip_lockstep", gossip, "copy_another", begins_from_the_start),
    Mutant("met anew", "gossip_asynchronous", gossip, "copy_another", begins_from_the_start),
    Mutant("sent anew", "broadcast", broadcast, "copy_another", begins_from_the_start),
    Mutant("mass of nowhere", "push_sum", push_sum, "give", given_and_kept),
    Mutant("given twice", "push_sum", push_sum, "give_again", given_anew),
    Mutant("called too early", "gossip_asynchronous", World, "_bring_back", called_at_once),
    Mutant("broadcast too early", "broadcast", World, "_bring_back", called_at_once),
    Mutant("given too early", "push_sum", World, "_bring_back", called_at_once),
    Mutant("its return unheard", "gossip_lockstep", Server, "admit", never_called_again),
    Mutant("the dead awaited", "gossip_lockstep", lockstep, "leave", whoever_gave_is_there),
)


LATE = ("answered again without room",)
"""Found so late that it takes a minute."""


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(mutant, marks=pytest.mark.slow) if mutant.name in LATE else mutant
        for mutant in MUTANTS
    ],
    ids=lambda mutant: mutant.name.replace(" ", "_"),
)
def test_it_is_caught(mutant: Mutant, record_property: Callable[[str, object], None]) -> None:
    right = vars(mutant.owner).get(mutant.attribute) or getattr(mutant.owner, mutant.attribute)
    variant = BY_NAME[mutant.variant]
    with mock.patch.object(mutant.owner, mutant.attribute, mutant.broken(right)):
        for seed in range(SEEDS):
            try:
                variant.run(seed)
            except Exception as error:  # noqa: BLE001 - however it shows
                record_property("seeds", seed + 1)
                print(f"{mutant.name}: seed {seed}, {type(error).__name__}: {error}")
                return
    pytest.fail(f"{mutant.name} was not caught within {SEEDS} seeds")
