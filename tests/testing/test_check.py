# ruff: noqa: ARG002 - what is wrong looks at less than what is right
"""`check`: right protocols pass, wrong ones are found, and what is found can be run again."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import pytest
import quorum
import torch
from quorum import DampingForgotten, LossesForgotten, Quorum, RestsForgotten
from simulated_variants import BY_NAME, VARIANTS, Variant

from manyhands.endpoint import Custom
from manyhands.protocols import (
    ALL,
    Action,
    Answer,
    Asynchronous,
    Call,
    ServerState,
    SoftSync,
    StrategyProtocol,
    Synchronous,
)
from manyhands.testing import (
    DEFAULT_LAWS,
    MUTATIONS,
    Acknowledged,
    BrokenLawError,
    ExactStaleness,
    Fresh,
    Law,
    MeanOfChanges,
    ReferenceServer,
    Weighting,
    WholeSteps,
    check,
    mutants,
)
from manyhands.testing.__main__ import main, show
from manyhands.testing.checking import make_plan
from manyhands.testing.replay import load_script
from support import ROOT

if TYPE_CHECKING:
    from manyhands.endpoint import Endpoint, Replica

PLANTED = [
    (LossesForgotten, "Progress"),
    (RestsForgotten, "Progress"),
    (DampingForgotten, "Weighting"),
]
planted = pytest.mark.parametrize(("protocol", "law"), PLANTED)


def broken(protocol: object, seeds: int = 200, **options: object) -> BrokenLawError:
    with pytest.raises(BrokenLawError) as raised:
        check(protocol, seeds, **options)
    return raised.value


@pytest.mark.parametrize(
    ("protocol", "seeds"), [(Quorum(), 100), (Quorum(wait_for=3, every=1), 30), (quorum.drawn, 30)]
)
def test_a_right_protocol_passes(protocol: object, seeds: int) -> None:
    report = check(protocol, seeds, laws=[Acknowledged, ExactStaleness])
    assert report.seeds == seeds
    assert report.laws == (
        *(law.__name__ for law in DEFAULT_LAWS),
        "Acknowledged",
        "ExactStaleness",
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_right_protocol_passes_a_thousand_seeds() -> None:
    assert check(quorum.drawn, 1000, laws=[Acknowledged, ExactStaleness]).seeds == 1000


@planted
def test_a_planted_fault_is_found_and_reported(protocol: type[Quorum], law: str) -> None:
    error = broken(protocol())
    assert error.law == law
    assert error.seed is not None
    assert f"breaks {law} with seed {error.seed}" in str(error)
    assert error.case in str(error)
    assert error.replay == (
        f"python -m manyhands.testing tests/testing/quorum.py --strategy '{protocol()}' "
        f"--seed {error.seed}"
    )


@pytest.mark.timed
@planted
def test_a_planted_fault_is_found_within_ten_seconds(protocol: type[Quorum], law: str) -> None:
    begun = time.monotonic()
    assert broken(protocol).law == law
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize("protocol", ALL, ids=lambda one: one.name)
def test_a_built_in_protocol_obeys_the_default_laws(protocol: type[StrategyProtocol]) -> None:
    assert check(protocol, 20).protocol == str(protocol())


@pytest.mark.parametrize(
    "text",
    [
        "asynchronous(delay_compensation=0.01)",
        "easgd(order=asynchronous)",
        "easgd(order=round_robin)",
        "gossip(order=asynchronous)",
        "hierarchical(outer=synchronous())",
        "softsync(wait_for=2, late=drop)",
    ],
)
def test_a_variant_of_a_built_in_protocol_obeys_the_default_laws(text: str) -> None:
    assert check(text, 8).protocol == text


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_every_variant_of_the_built_in_protocols_obeys_the_default_laws(variant: Variant) -> None:
    """Servers that recover read their journals in the encoding of live ones."""
    seeds = int(os.environ.get("MANYHANDS_SEEDS", "1000"))
    assert check(variant.protocol, seeds).seeds == seeds


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        # A successor that began between two answers with the same parameters rounded otherwise.
        ("softsync_drop_coded", 234),
        ("local_sgd_coded", 637),
        # A successor carried its island's last round while others waited for the end of the run.
        ("hierarchical_coded", 674),
        # The answer to the worker in a server's own process was not a copy.
        ("push_sum_coded", 132),
    ],
)
def test_what_was_found_stays_mended(name: str, seed: int) -> None:
    check(BY_NAME[name].protocol, 1, first=seed)


@pytest.mark.parametrize("protocol", [DampingForgotten(), Quorum()])
def test_the_number_of_processes_changes_nothing(protocol: Quorum) -> None:
    told = []
    for processes in (1, 3):
        try:
            told.append(replace(check(protocol, 30, processes=processes), seconds=0.0))
        except BrokenLawError as error:
            told.append((error.seed, str(error)))
    assert told[0] == told[1]


def test_the_replay_command_shows_the_run_event_by_event() -> None:
    error = broken(RestsForgotten())
    words = shlex.split(error.replay)
    done = subprocess.run(
        [sys.executable, *words[1:]], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 1
    assert f"seed {error.seed} breaks Progress: the run is not over" in done.stderr
    assert "server-0 has not answered call" in done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"seed {error.seed}: {error.case}"
    times = [float(found[1]) for line in lines[2:] if (found := re.match(r" *([\d.]+) s  ", line))]
    assert len(times) == len(lines) - 2
    assert times == sorted(times)
    for what in ("starts", "gets lease 0", "calls server-0: Push(", "decides on call", "commits"):
        assert what in done.stdout


def test_the_command_checks_a_script_by_text_or_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    script = str(ROOT / "tests" / "testing" / "quorum.py")
    assert main([script, "--strategy", "quorum(wait_for=3)", "--seeds", "5"]) == 0
    assert "quorum(wait_for=3): 5 seeds (0 to 4) broke no law" in capsys.readouterr().out
    assert main([f"{script}:drawn", "--seeds", "5", "--first", "7", "--law", "Acknowledged"]) == 0
    assert "drawn: 5 seeds (7 to 11) broke no law" in capsys.readouterr().out
    assert main([script, "--strategy", "LossesForgotten", "--seeds", "200"]) == 1
    assert "losses_forgotten() breaks Progress" in capsys.readouterr().err
    assert main(["--strategy", "ssp()", "--seed", "3", "--no-faults"]) == 0
    assert "seed 3 breaks no law" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name a protocol with --strategy"),
        (["no.py"], "there is no file no.py"),
        (["--strategy", "nonsense()"], "there is no strategy"),
        (["--strategy", "ssp()", "--law", "Justice"], "there is no Justice"),
        (["--strategy", "ssp()", "--workers", "many"], "--workers is two numbers"),
        (["--strategy", "ssp()", "--workers", "1,2"], "workers must be two numbers from 2 on"),
    ],
)
def test_the_command_says_what_is_wrong(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert message in capsys.readouterr().err


class AsynchronousReference(ReferenceServer):
    def push(self, call, payload, samples, read):
        self.descend(payload, samples / self.case.job.global_batch)
        self.version += 1
        return [self.answer(call)]


class ParametersOnly(AsynchronousReference):
    def hear(self, call, payload):
        super().hear(call, payload)


class WithoutItsWeight(ParametersOnly):
    def descend(self, gradient, weight):
        super().descend(gradient, 1.0)


class TooManyVersions(AsynchronousReference):
    def pull(self, call):
        self.version += 1
        return super().pull(call)


def test_servers_are_compared_with_a_reference() -> None:
    check("asynchronous()", 15, reference=AsynchronousReference)
    check("asynchronous()", 15, reference=ParametersOnly)
    assert broken("asynchronous()", reference=WithoutItsWeight).law == "Reference"
    error = broken("asynchronous()", reference=TooManyVersions)
    assert error.law == "Reference"
    assert "test_check.py --strategy 'asynchronous()' --reference TooManyVersions" in error.replay


def test_laws_by_name_hold_for_some_protocols_only() -> None:
    check(Synchronous(), 15, laws=[Fresh, Acknowledged, ExactStaleness, WholeSteps])
    assert broken(Asynchronous(), laws=[Fresh]).law == "Fresh"
    assert broken(SoftSync(wait_for=2, weigh_as="step"), laws=[WholeSteps]).law == "WholeSteps"


def test_a_default_law_can_be_left_out() -> None:
    assert broken(DampingForgotten()).law == "Weighting"
    report = check(DampingForgotten(), 20, without=[Weighting])
    assert "Weighting" not in report.laws
    with pytest.raises(ValueError, match="no default: Fresh"):
        check(Quorum(), without=[Fresh])


class NeverLost(Law):
    """A law of one's own."""

    def fenced(self, sender: str) -> None:
        raise BrokenLawError(
            f"{sender} was lost after {self.now:g} s, of {self.case.workers} workers"
        )


def test_a_law_of_ones_own_hears_of_faults_unless_there_are_none() -> None:
    assert broken(Quorum(), laws=[NeverLost]).law == "NeverLost"
    check(Quorum(), 20, laws=[NeverLost], faults=False)
    with pytest.raises(TypeError, match="laws are subclasses of"):
        check(Quorum(), laws=["Fresh"])


@dataclass(frozen=True, repr=False)
class Counting(Quorum):
    """Its decisions depend on more than state and call."""

    name: ClassVar[str] = "counting"

    def on_message(self, state: ServerState, call: Call) -> tuple[ServerState, list[Action]]:
        after, actions = super().on_message(state, call)
        calls = vars(self).setdefault("calls", [])
        calls.append(call)
        return replace(after, dealt=len(calls)), actions


@dataclass(frozen=True)
class Opaque(ServerState):
    owner: object = field(default_factory=object)


@dataclass(frozen=True, repr=False)
class Unwritable(Asynchronous):
    """Its state cannot be written to a journal."""

    name: ClassVar[str] = "unwritable"

    def begin(self, terms) -> ServerState:
        return Opaque(terms)


RUNS = itertools.count()


@dataclass(frozen=True, repr=False)
class Moody(Asynchronous):
    """Its workers use a global variable."""

    name: ClassVar[str] = "moody"

    async def worker(self, replica: Replica, endpoint: Endpoint) -> None:
        for _ in range(next(RUNS) % 3):
            await self.refresh(replica, endpoint)
        await super().worker(replica, endpoint)


@dataclass(frozen=True, repr=False)
class Restless(Asynchronous):
    """Its workers pull for ever."""

    name: ClassVar[str] = "restless"

    async def worker(self, replica: Replica, endpoint: Endpoint) -> None:
        while True:
            await self.refresh(replica, endpoint)


@dataclass(frozen=True, repr=False)
class Hasty(Asynchronous):
    """Its workers compute on parameters that they never received."""

    name: ClassVar[str] = "hasty"

    async def refresh(self, replica: Replica, endpoint: Endpoint) -> list[int]:
        return [0]


@dataclass(frozen=True, repr=False)
class Faulty(Asynchronous):
    """It raises an error."""

    name: ClassVar[str] = "faulty"

    def on_message(self, state: ServerState, call: Call) -> tuple[ServerState, list[Action]]:
        raise KeyError(call.worker)


@pytest.mark.parametrize(
    ("protocol", "law", "words"),
    [
        (Counting, "PureDecisions", "after the same decision a second time"),
        (Unwritable, "PureDecisions", "cannot be written to its journal"),
        (Moody, "SameSeedSameRun", "the same seed gave another run"),
        (Restless, "Progress", "the run is not over"),
        (Hasty, "RecordedStaleness", "has not received the parameters of server-0"),
        (Faulty, "NoErrors", "KeyError: 'worker-"),
    ],
)
def test_other_mistakes_are_found(protocol: type[StrategyProtocol], law: str, words: str) -> None:
    error = broken(protocol)
    assert error.law == law
    assert words in str(error)


@dataclass(frozen=True, repr=False)
class Polite(Asynchronous):
    """Its workers begin with a message and a payload of their own."""

    name: ClassVar[str] = "polite"

    async def worker(self, replica: Replica, endpoint: Endpoint) -> None:
        greeting = torch.tensor([1, 2, 3], dtype=torch.uint8)
        endpoint.post("server-0", Custom("hello", {"rank": replica.rank}), payload=greeting)
        await endpoint.receive("server-0")
        await super().worker(replica, endpoint)

    def on_message(self, state: ServerState, call: Call) -> tuple[ServerState, list[Action]]:
        if isinstance(call.message, Custom):
            return state, [Answer(call, Custom("welcome"), parameters=False)]
        return super().on_message(state, call)


def test_a_protocol_may_have_messages_and_payloads_of_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    check(Polite, 20, laws=[Acknowledged, ExactStaleness])
    plan = make_plan(Polite, laws=(), without=(), reference=None, workers=(2, 6), faults=True)
    assert show(plan, 0) == 0
    assert (
        "calls server-0: Custom(kind=hello, values={'rank': 0}) [1 2 3]" in capsys.readouterr().out
    )


@pytest.mark.usefixtures("forgets_names")
def test_the_example_of_a_protocol_of_ones_own_obeys_the_laws() -> None:
    """A server applies the mean as it is, with these options: its weights are compared, too."""
    module = load_script(ROOT / "examples" / "own_protocol.py")
    check("quorum(every=2)", 20)
    plain = module.Quorum(every=2, rate=1.0, momentum=0.0)
    check(plain, 20, laws=[MeanOfChanges, Acknowledged])
    wrong = {"weights are wrong": MUTATIONS["weights are wrong"]}
    (found,) = mutants(plain, faults=wrong, laws=[MeanOfChanges])
    assert found.law == "MeanOfChanges"


def test_what_is_not_at_the_top_level_of_a_file_is_replayed_by_check() -> None:
    @dataclass(frozen=True, repr=False)
    class Local(RestsForgotten):
        name: ClassVar[str] = "local"

    error = broken(Local())
    assert error.replay.startswith(f"check(…, first={error.seed}, seeds=1)")
    assert broken(Local(), 1, first=error.seed).seed == error.seed


def test_the_number_of_workers_is_one_that_the_protocol_can_run_with() -> None:
    check(SoftSync(wait_for=5), 10)
    with pytest.raises(ValueError, match=r"cannot run with 2 to 6 workers: wait_for=9 needs"):
        check(SoftSync(wait_for=9), 10)


def test_only_protocols_can_be_checked() -> None:
    with pytest.raises(TypeError, match="only protocols can be checked"):
        check("allreduce()")
    with pytest.raises(TypeError, match="expected a protocol, or a function"):
        check(3)
    with pytest.raises(ValueError, match="seeds must be at least 1"):
        check(Quorum(), 0)
