"""Which of several failures was the first, and in which words a process is said to have ended."""

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.live.processes.supervision import ErrorReport, Exit, first_failure

reports = st.builds(
    ErrorReport,
    message=st.just("ValueError: boom"),
    timestamp=st.just(0),
    at=st.floats(0, 100),
    consequence=st.booleans(),
    traceback=st.just("Traceback"),
)
codes = st.integers(-64, 255)
crowds = st.lists(
    st.builds(
        Exit,
        name=st.sampled_from(["coordinator", *(f"worker-{rank}" for rank in range(6))]),
        host=st.just("hostB"),
        pid=st.integers(2, 99),
        code=st.just(0) | codes,
        report=st.none() | reports,
    ),
    max_size=7,
    unique_by=lambda exit_: exit_.name,
)


def finished(name: str) -> Exit:
    return Exit(name, "hostB", 10, 0, None)


def killed(name: str, code: int = -signal.SIGKILL) -> Exit:
    return Exit(name, "hostB", 10, code, None)


def raised(name: str, at: float, *, consequence: bool = False) -> Exit:
    report = ErrorReport("ValueError: boom", int(at), at, consequence, "Traceback ...")
    return Exit(name, "hostB", 10, 1, report)


def test_without_a_failure_there_is_no_first_one() -> None:
    assert first_failure([]) is None
    assert first_failure([finished("worker-0"), finished("worker-1")]) is None


def test_a_killed_process_comes_before_those_who_lost_it() -> None:
    first = first_failure(
        [
            raised("worker-0", 1.0, consequence=True),
            killed("worker-3"),
            raised("worker-1", 0.5, consequence=True),
            finished("worker-2"),
        ]
    )
    assert first == killed("worker-3")


def test_the_earliest_report_is_the_first_failure_though_it_is_seen_last() -> None:
    exits = [raised("worker-0", 12.25), raised("worker-1", 12.5), raised("worker-2", 12.125)]
    assert first_failure(exits) == exits[2]


def test_a_consequence_is_passed_over_though_it_was_reported_earlier() -> None:
    cause = raised("worker-1", 20.0)
    assert first_failure([raised("worker-0", 10.0, consequence=True), cause]) == cause


def test_where_all_are_consequences_the_earliest_is_told() -> None:
    exits = [raised(f"worker-{rank}", 10.0 - rank, consequence=True) for rank in range(3)]
    assert first_failure(exits) == exits[2]


@given(crowds, st.randoms(use_true_random=False))
def test_the_first_failure_does_not_depend_on_the_order_in_which_exits_are_seen(
    crowd: list[Exit], source: object
) -> None:
    shuffled = [*crowd]
    source.shuffle(shuffled)
    assert first_failure(shuffled) == first_failure(crowd) == first_failure(iter(crowd))


@given(crowds)
def test_nothing_in_the_crowd_explains_the_first_failure(crowd: list[Exit]) -> None:
    first = first_failure(crowd)
    failed = [exit_ for exit_ in crowd if exit_.code != 0]
    assert (first is None) == (not failed)
    if first is None:
        return
    assert first in failed
    if first.report is None:
        return
    assert all(exit_.report is not None for exit_ in failed), "a silent death was passed over"
    causes = [exit_.report.at for exit_ in failed if not exit_.report.consequence]
    assert first.report.consequence == (not causes)
    assert first.report.at == min(causes or [exit_.report.at for exit_ in failed])


@pytest.mark.parametrize(
    ("exit_", "words"),
    [
        (killed("worker-3"), "was killed (SIGKILL), probably out of memory or by hand"),
        (killed("worker-3", -signal.SIGSEGV), "was ended by SIGSEGV"),
        (killed("worker-3", -signal.SIGTERM), "was ended by SIGTERM"),
        (killed("worker-3", -40), "was ended by signal 40"),
        (killed("worker-3", 7), "exited with code 7 and no traceback"),
        (raised("worker-3", 1.0), "failed"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_the_words_say_who_and_how(exit_: Exit, words: str) -> None:
    assert str(exit_) == f"worker 3 on hostB (pid 10) {words}"
    assert exit_.failed


def test_finishing_is_no_failure() -> None:
    assert not finished("worker-0").failed


@given(codes.filter(bool), st.none() | reports)
def test_there_are_words_for_every_way_to_end(code: int, report: ErrorReport | None) -> None:
    words = str(Exit("worker-11", "hostB", 4711, code, report))
    assert words.startswith("worker 11 on hostB (pid 4711) ")
    assert len(words.splitlines()) == 1
