"""Planted faults: do the laws notice a protocol that is wrong?

Each mutation takes a protocol and returns one of a subclass made on the fly, which does one thing
wrong. Like a protocol's own decisions, those of a mutation depend on the state and the call alone.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from manyhands.endpoint import Parameters
from manyhands.protocols import USES_PAYLOAD, Add, Answer, Scale, ShardOperation, Step
from manyhands.protocols.parts.recovery import encoded_state
from manyhands.protocols.parts.recovery.server_journal import ServerJournal
from manyhands.strategies import protocol_of
from manyhands.testing.checking import CheckingPlan, make_plan, to_protocol
from manyhands.testing.codec_events import wrapped
from manyhands.testing.laws.law import BrokenLawError
from manyhands.testing.observation import one_thread

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    import numpy as np
    from numpy.typing import NDArray

    from manyhands.endpoint import LeasedBatch
    from manyhands.protocols import Action, Call, ServerState, StrategyProtocol
    from manyhands.testing.cases.case import Case
    from manyhands.testing.checking import DrawnProtocol
    from manyhands.testing.laws.law import Law
    from manyhands.testing.reference import ReferenceServer

    Mutation: TypeAlias = Callable[[StrategyProtocol], StrategyProtocol]
    RuntimeMutation: TypeAlias = Callable[[], AbstractContextManager[None]]
    Change: TypeAlias = Callable[[ServerState, Call | None, list[Action]], list[Action]]


def _with(protocol: StrategyProtocol, **methods: object) -> StrategyProtocol:
    """A copy of a protocol whose class has other methods."""
    kind: type[StrategyProtocol] = type(protocol)
    mutant: StrategyProtocol = object.__new__(type(kind.__name__, (kind,), methods))
    vars(mutant).update(vars(protocol))
    return mutant


def _with_actions(protocol: StrategyProtocol, change: Change) -> StrategyProtocol:
    """A copy of a protocol that decides on other actions."""

    def on_message(
        self: StrategyProtocol, state: ServerState, call: Call
    ) -> tuple[ServerState, list[Action]]:
        after, actions = type(protocol).on_message(self, state, call)
        return after, change(state, call, [*actions])

    def on_leave(
        self: StrategyProtocol, state: ServerState, worker: str
    ) -> tuple[ServerState, list[Action]]:
        after, actions = type(protocol).on_leave(self, state, worker)
        return after, change(state, None, [*actions])

    return _with(protocol, on_message=on_message, on_leave=on_leave)


def drop_answers(protocol: StrategyProtocol) -> StrategyProtocol:
    """Every fourth call of a worker is never answered."""
    return _with_actions(
        protocol,
        lambda _, __, actions: [
            a for a in actions if not (isinstance(a, Answer) and a.call.number % 4 == 3)
        ],
    )


def answer_twice(protocol: StrategyProtocol) -> StrategyProtocol:
    """Every fourth call of a worker is answered twice."""
    return _with_actions(
        protocol,
        lambda _, __, actions: [
            *actions,
            *(a for a in actions if isinstance(a, Answer) and a.call.number % 4 == 3),
        ],
    )


def apply_twice(protocol: StrategyProtocol) -> StrategyProtocol:
    """Every fourth update of a worker is applied twice."""

    def change(_: ServerState, __: Call | None, actions: list[Action]) -> list[Action]:
        changed: list[Action] = []
        for action in actions:
            call = action.call if isinstance(action, USES_PAYLOAD) else None
            twice = call is not None and call.number % 4 == 3
            changed += [action, action] if twice else [action]
        return changed

    return _with_actions(protocol, change)


def ignore_losses(protocol: StrategyProtocol) -> StrategyProtocol:
    """Servers do nothing when a worker is lost."""

    def on_leave(
        self: StrategyProtocol, state: ServerState, worker: str
    ) -> tuple[ServerState, list[Action]]:
        del self, worker
        return state, []

    return _with(protocol, on_leave=on_leave)


def wrong_weights(protocol: StrategyProtocol) -> StrategyProtocol:
    """Every update counts 1.1 times as much."""

    def change(_: ServerState, __: Call | None, actions: list[Action]) -> list[Action]:
        changed: list[Action] = []
        for action in actions:
            match action:
                case Add():
                    changed.append(replace(action, share=1.1 * action.share))
                case Step(call=call) if call is not None:
                    changed.append(replace(action, weight=1.1 * action.weight))
                case Scale():
                    changed.append(replace(action, by=1.1 * action.by))
                case ShardOperation():
                    changed.append(_heavier(action))
                case _:
                    changed.append(action)
        return changed

    return _with_actions(protocol, change)


def _heavier(action: Any) -> Action:
    """An operation of the protocol's own; its weight, if it has one, is a field `share`."""
    if isinstance(getattr(action, "share", None), int | float):
        action = replace(action, share=1.1 * action.share)
    heavier: Action = action
    return heavier


def stale_versions(protocol: StrategyProtocol) -> StrategyProtocol:
    """Answers name the version before the one that they contain."""

    def change(_: ServerState, __: Call | None, actions: list[Action]) -> list[Action]:
        changed: list[Action] = []
        for action in actions:
            said = action.message if isinstance(action, Answer) else None
            if isinstance(action, Answer) and isinstance(said, Parameters) and said.version:
                before = msgspec.structs.replace(said, version=said.version - 1)
                changed.append(replace(action, message=before))
            else:
                changed.append(action)
        return changed

    return _with_actions(protocol, change)


def commit_twice(protocol: StrategyProtocol) -> StrategyProtocol:
    """Workers commit every batch twice."""
    return _with_commits(protocol, times=2)


def never_commit(protocol: StrategyProtocol) -> StrategyProtocol:
    """Workers commit no batch."""
    return _with_commits(protocol, times=0)


class _OtherCommits:
    """A replica that commits each batch a number of times; all else is the replica's own."""

    def __init__(self, replica: Any, times: int) -> None:
        object.__setattr__(self, "_replica", replica)
        object.__setattr__(self, "_times", times)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_replica"), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(object.__getattribute__(self, "_replica"), name, value)

    def commit(self, *batches: LeasedBatch) -> None:
        for _ in range(object.__getattribute__(self, "_times")):
            object.__getattribute__(self, "_replica").commit(*batches)


def _with_commits(protocol: StrategyProtocol, times: int) -> StrategyProtocol:
    def worker(self: StrategyProtocol, replica: Any, endpoint: Any) -> Any:
        return type(protocol).worker(self, _OtherCommits(replica, times), endpoint)

    return _with(protocol, worker=worker)


MUTATIONS: Final[Mapping[str, Mutation]] = {
    "answers are dropped": drop_answers,
    "calls are answered twice": answer_twice,
    "updates are applied twice": apply_twice,
    "losses are ignored": ignore_losses,
    "weights are wrong": wrong_weights,
    "versions are stale": stale_versions,
    "batches are committed twice": commit_twice,
    "batches are never committed": never_commit,
}
"""The planted faults of `mutants`, by name. Each takes a protocol and returns one that is wrong."""


@contextlib.contextmanager
def untyped_keys() -> Iterator[None]:
    """Stored states are read without the types of their keys, which are strings in JSON."""

    def forgetting(convert: Callable[..., Any]) -> Callable[..., Any]:
        return lambda values, kind, **_: convert(values, kind)

    with wrapped(encoded_state, "convert", forgetting):
        yield


@contextlib.contextmanager
def lost_numbers() -> Iterator[None]:
    """Snapshots leave out the numbers of the last calls."""

    def forgetting(recover: Callable[..., Any]) -> Callable[..., Any]:
        def recovered(journal: ServerJournal, *about: Any) -> Any:
            state, _, waiting = recover(journal, *about)
            return state, {}, waiting

        return recovered

    with wrapped(ServerJournal, "recover", forgetting):
        yield


RUNTIME_MUTATIONS: Final[Mapping[str, RuntimeMutation]] = {
    "the keys of a stored state have no types": untyped_keys,
    "snapshots have no numbers of calls": lost_numbers,
}
"""The planted faults of `runtime_mutants`, by name: each is there within its context."""


@dataclass(frozen=True)
class MutantReport:
    """What became of one planted fault."""

    fault: str
    seeds: int | None
    """Seeds until a law was broken; None if none was."""
    law: str = ""
    """The law that was broken."""
    words: str = ""
    """What happened."""
    same: bool = False
    """Whether all runs were as without the fault: it does not apply to this protocol."""

    def __str__(self) -> str:
        if self.seeds is not None:
            return f"{self.fault}: found after {self.seeds} seeds, by {self.law}: {self.words}"
        return f"{self.fault}: {'changes nothing in these runs' if self.same else 'NOT FOUND'}"


def mutants(
    protocol: str | StrategyProtocol | type[StrategyProtocol] | DrawnProtocol,
    seeds: int = 200,
    *,
    faults: Mapping[str, Mutation] = MUTATIONS,
    laws: Sequence[type[Law]] = (),
    without: Sequence[type[Law]] = (),
    reference: Callable[[Case, NDArray[np.float64]], ReferenceServer] | None = None,
    workers: tuple[int, int] = (2, 6),
) -> tuple[MutantReport, ...]:
    """Plant faults in a protocol, and report how many seeds it takes until a law is broken.

    A check that passes says little if it would also pass a protocol that is wrong.

    Args:
        protocol: as in `check`.
        seeds: the most seeds for each fault.
        faults: the faults to plant, by name: functions from a protocol to one that is wrong.
        laws: as in `check`.
        without: as in `check`.
        reference: as in `check`.
        workers: as in `check`.

    Returns:
        A report for each fault. A fault that changes no run, such as ignored losses where servers
        have nothing to do when a worker is lost, is reported as that.

    Example:
        >>> from manyhands.testing import MUTATIONS, mutants
        >>> found = mutants("averaging()", faults={"weights": MUTATIONS["weights are wrong"]})
        >>> found[0].law, found[0].seeds
        ('Weighting', 1)
    """
    chosen = to_protocol(protocol)
    right = make_plan(
        chosen, laws=laws, without=without, reference=reference, workers=workers, faults=True
    )
    with one_thread():
        return tuple(
            _report(name, right, replace(right, protocol=_mutated(chosen, fault)), seeds)
            for name, fault in faults.items()
        )


def runtime_mutants(
    protocol: str | StrategyProtocol | type[StrategyProtocol] | DrawnProtocol,
    seeds: int = 200,
    *,
    faults: Mapping[str, RuntimeMutation] = RUNTIME_MUTATIONS,
    without: Sequence[type[Law]] = (),
) -> tuple[MutantReport, ...]:
    """Plant faults in what servers store, and report how many seeds it takes until one is found.

    Args:
        protocol: as in `check`.
        seeds: the most seeds for each fault.
        faults: the faults to plant, by name: context managers.
        without: as in `check`.
    """
    chosen = to_protocol(protocol)
    options: dict[str, Any] = {"laws": (), "reference": None, "workers": (2, 6), "faults": True}
    right = make_plan(chosen, without=without, **options)
    with one_thread():
        return tuple(_report(name, right, right, seeds, fault) for name, fault in faults.items())


def _report(
    name: str,
    right: CheckingPlan,
    wrong: CheckingPlan,
    seeds: int,
    planted: RuntimeMutation = contextlib.nullcontext,
) -> MutantReport:
    same = True
    for seed in range(seeds):
        try:
            with planted():
                found = wrong.run(seed)
        except BrokenLawError as error:
            return MutantReport(name, seed + 1, error.law, str(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, the fault was found
            words = f"{type(error).__name__}: {error}"
            return MutantReport(name, seed + 1, "NoErrors", words)
        same = same and found == right.run(seed)
    return MutantReport(name, None, same=same)


def _mutated(
    protocol: StrategyProtocol | DrawnProtocol, fault: Mutation
) -> StrategyProtocol | DrawnProtocol:
    given = protocol_of(protocol)
    if given is not None:
        return fault(given)

    def drawn(rng: random.Random, workers: int, servers: int) -> StrategyProtocol:
        return fault(protocol(rng, workers, servers))  # type: ignore[operator] # it is a function

    return drawn
