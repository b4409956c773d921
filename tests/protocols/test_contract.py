"""The contract of every protocol: frozen, pure on the server's side, free of any runtime."""

import ast
import inspect
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from virtual_jobs import a_job

from manyhands import protocols
from manyhands.endpoint import Parameters, Pull, Push
from manyhands.notation import Value
from manyhands.protocols import ALL, Add, Answer, Call, Step, StrategyProtocol, Terms
from manyhands.sampling.batches import BatchSizes
from manyhands.strategies import CATALOG

BANNED = {"zmq", "time", "random", "threading", "asyncio", "socket", "simpy", "torch"}
every = pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.name)
calls = st.lists(
    st.builds(
        lambda sender, message: (f"worker-{sender}", message),
        st.integers(0, 3),
        st.one_of(st.just(Pull()), st.builds(Push, st.integers(0, 5), st.integers(1, 9))),
    ),
    max_size=20,
)


def numbered(all_of: list[tuple[str, Push | Pull]]) -> list[Call]:
    """Calls with each sender's own count."""
    counts: dict[str, int] = {}
    made = []
    for sender, message in all_of:
        counts[sender] = counts.get(sender, 0) + 1
        made.append(Call(sender, counts[sender], message))
    return made


@every
def test_it_is_a_frozen_value_of_the_catalog(cls: type[StrategyProtocol]) -> None:
    one = cls()
    assert isinstance(one, Value)
    assert CATALOG.read(str(one)) == one
    with pytest.raises(FrozenInstanceError):
        one.servers = 3  # type: ignore[misc]
    assert cls.support in {"stable", "beta", "experimental"}


@every
def test_it_says_how_many_workers_it_serves(cls: type[StrategyProtocol]) -> None:
    cls().check(1)
    cls().check(1000)
    with pytest.raises(ValueError, match="at least 1 worker"):
        cls().check(0)


@every
def test_it_says_who_clips(cls: type[StrategyProtocol]) -> None:
    one = cls()
    assert one.clips in {"workers", "servers"}
    clipped = a_job(clip=1.0)
    one.check_job(clipped, 2)
    if one.clips == "servers" and any(field.name == "servers" for field in fields(cls)):
        with pytest.raises(ValueError, match="needs the norm of the whole mean gradient"):
            replace(one, servers=2).check_job(clipped, 2)


@every
@given(calls)
def test_its_decisions_are_pure(
    cls: type[StrategyProtocol], heard: list[tuple[str, Push | Pull]]
) -> None:
    one = cls()
    begun = one.begin(Terms(global_batch=8, workers=4))
    histories = []
    for _ in range(2):
        state, history = begun, []
        for call in numbered(heard):
            before = replace(state)
            after, actions = one.on_message(state, call)
            assert state == before, "the state it was given is as it was"
            history.append((after, tuple(actions)))
            state = after
        histories.append(history)
    assert histories[0] == histories[1]
    assert one.begin(Terms(global_batch=8, workers=4)) == begun


@every
@given(calls)
def test_it_answers_each_call_at_most_once_and_versions_never_go_back(
    cls: type[StrategyProtocol], heard: list[tuple[str, Push | Pull]]
) -> None:
    one = cls()
    state = one.begin(Terms(global_batch=8, workers=4))
    asked, answered, stepped = set(), [], []
    for call in numbered(heard):
        asked.add((call.sender, call.number))
        after, actions = one.on_message(state, call)
        assert after.version >= state.version
        for action in actions:
            called = getattr(action, "call", None)
            if called is None:
                continue
            key = (called.sender, called.number)
            assert key in asked
            if isinstance(action, Answer):
                assert action.message.version <= after.version
                answered.append(key)
            elif isinstance(action, Add | Step):
                stepped.append(key)
        state = after
    assert len(set(answered)) == len(answered)
    assert len(set(stepped)) == len(stepped)


@pytest.mark.parametrize(
    "path", sorted(Path(inspect.getfile(protocols)).parent.glob("*.py")), ids=lambda path: path.name
)
def test_it_touches_no_clock_socket_thread_or_random_source_of_its_own(path: Path) -> None:
    imported, typed = set(), set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names) if id(node) not in typed:
                imported |= {name.name.partition(".")[0] for name in names}
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                typed |= {id(inner) for inner in ast.walk(node)}
            case ast.ImportFrom(module=str(module)) if id(node) not in typed:
                imported.add(module.partition(".")[0])
    assert not imported & BANNED


def test_a_server_of_asynchronous_steps_with_every_push() -> None:
    one = protocols.Asynchronous()
    state = one.begin(Terms(global_batch=8, workers=4))
    push = Call("worker-2", 1, Push(version=0, samples=2))
    for version in range(3):
        state, actions = one.on_message(state, push)
        assert actions == [
            Step(push, weight=0.25, staleness=version, blend=0.25),
            Answer(push, Parameters(version + 1)),
        ]
    pull = Call("worker-1", 1, Pull())
    assert one.on_message(state, pull) == (state, [Answer(pull, Parameters(3))])
    stray = Call("worker-1", 2, Parameters(1))
    assert one.on_message(state, stray) == (state, [])


GROWING = BatchSizes(((0, 8), (100, 32)))


@pytest.mark.parametrize("one", [protocols.Asynchronous(), protocols.StaleSynchronous(9)])
def test_an_update_is_weighed_by_the_global_batch_that_its_samples_are_from(
    one: StrategyProtocol,
) -> None:
    state = one.begin(Terms(GROWING, workers=2))
    for dealt, weight in ((99, 0.5), (100, 0.125), (40, 0.5)):
        call = Call("worker-1", 1, Push(version=0, samples=4, dealt=dealt))
        _, (step, *_) = one.on_message(state, call)
        assert isinstance(step, Step)
        assert (step.weight, step.dealt) == (weight, dealt)


def test_a_round_of_several_batches_weighs_each_by_its_own_and_goes_by_the_latest_rate() -> None:
    one = protocols.SoftSync(wait_for=2)
    state: protocols.ServerState = one.begin(Terms(GROWING, workers=3))
    for sender, dealt in (("worker-0", 100), ("worker-1", 92)):
        state, actions = one.on_message(state, Call(sender, 1, Push(0, 4, dealt)))
    assert Step(None, 0.125 + 0.5, over=8, blend=2 / 3, dealt=100) in actions
    for sender in ("worker-0", "worker-1"):
        state, actions = one.on_message(state, Call(sender, 2, Push(0, 0, 0)))
    assert not any(isinstance(action, Step) for action in actions), "nothing of the round is left"


def test_locked_is_asynchronous() -> None:
    assert CATALOG.read("locked(servers=2)") == protocols.Asynchronous(servers=2)
    with pytest.raises(ValueError, match="servers must be between 1 and 1024"):
        protocols.Asynchronous(servers=0)


def test_a_round_waits_for_all_who_live_though_somebody_gave_and_died() -> None:
    one = protocols.Synchronous()
    state: protocols.ServerState = one.begin(Terms(global_batch=8, workers=3))
    for sender in ("worker-0", "worker-1"):
        state, actions = one.on_message(state, Call(sender, 1, Push(version=0, samples=2)))
        assert not any(isinstance(action, Answer) for action in actions)
    state, actions = one.on_leave(state, "worker-0")
    assert actions == [], "worker 2 has not given yet"
    state, _ = one.on_message(state, Call("worker-0.2", 1, Pull()))
    state, actions = one.on_message(state, Call("worker-0.2", 2, Push(version=0, samples=0)))
    assert actions == [], "nor has it now that worker 0 is back"
    state, actions = one.on_message(state, Call("worker-2", 1, Push(version=0, samples=2)))
    assert Step(None, 0.75, over=6) in actions
    assert state.version == 1


def test_every_protocol_fits_on_a_page_or_two() -> None:
    folder = Path(protocols.__file__).parent
    long = {path.name: len(path.read_text("utf-8").splitlines()) for path in folder.rglob("*.py")}
    assert {name: lines for name, lines in long.items() if lines > 245} == {}
