"""The progress line, on a terminal and elsewhere, on a clock of the test's own."""

import io
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.live.agent.progress_line import ProgressLine
from manyhands.wire import Status


class Clock:
    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    """A stream that says it is a terminal, and what would be seen on it."""

    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """The lines from the top; a carriage return overwrites, it does not erase."""
        rows: list[list[str]] = [[]]
        column = 0
        for character in self.getvalue():
            if character == "\n":
                rows.append([])
            if character in "\r\n":
                column = 0
                continue
            rows[-1][column : column + 1] = [character]
            column += 1
        return ["".join(row).rstrip() for row in rows]


def status(samples: int, *, loss: float | None = None, phase: str = "compute") -> Status:
    return Status(1, 4, 4, samples, loss, started=True, phase=phase)


def joining(joined: int) -> Status:
    return Status(0, joined, 4, 0, None, started=False)


def line(terminal: Terminal) -> str:
    return terminal.lines()[-1]


def test_before_training_it_says_who_is_still_missing() -> None:
    terminal = Terminal()
    display = ProgressLine(1000, None, Clock(), terminal)
    display.show(joining(3))
    assert line(terminal) == "starting: 3 of 4 workers joined"
    display.show(status(0))
    assert line(terminal) == "starting: all 4 workers joined"


def test_it_says_how_far_how_fast_how_well_and_how_long() -> None:
    clock, terminal = Clock(), Terminal()
    display = ProgressLine(100_000, None, clock, terminal)
    display.show(status(1000))
    assert line(terminal) == "1,000 of 100,000 samples (1 %)"
    clock.now += 2
    display.show(status(21_000, loss=0.123456))
    assert line(terminal) == (
        "21,000 of 100,000 samples (21 %) · 10,000 samples/s · loss 0.1235 · 8 s left"
    )


def test_the_rate_is_that_of_the_last_seconds_and_not_of_the_whole_run() -> None:
    clock, terminal = Clock(), Terminal()
    display = ProgressLine(None, None, clock, terminal)
    samples = 100
    for rate in (10, 500):
        for _ in range(60):
            clock.now += 0.5
            samples += rate // 2
            display.show(status(samples))
    assert line(terminal) == f"{samples:,} samples · 500 samples/s"


@given(
    st.integers(1, 10_000).map(lambda hundreds: 100 * hundreds),
    st.lists(st.integers(1, 2000), min_size=2, max_size=30),
)
def test_a_steady_run_shows_its_rate_whatever_the_intervals(
    rate: int, hundredths: list[int]
) -> None:
    clock, terminal = Clock(), Terminal()
    display = ProgressLine(None, None, clock, terminal)
    passed = 0
    for interval in hundredths:
        passed += interval
        clock.now = 1000.0 + passed / 100
        display.show(status(rate * passed // 100))
    assert line(terminal).split(" · ")[1] == f"{rate:,} samples/s"


def test_while_it_evaluates_no_rate_is_shown_and_the_pause_does_not_slow_the_next_one() -> None:
    clock, terminal = Clock(), Terminal()
    display = ProgressLine(None, None, clock, terminal)
    for number in range(1, 4):
        clock.now += 1
        display.show(status(100 * number))
    clock.now += 60
    display.show(status(300, phase="evaluate"))
    assert line(terminal) == "300 samples · evaluating"
    clock.now += 1
    display.show(status(400))
    assert line(terminal) == "400 samples", "the first word after it has nothing to compare with"
    clock.now += 1
    display.show(status(500))
    assert line(terminal) == "500 samples · 100 samples/s"


def test_a_run_that_stands_still_claims_no_rate_and_no_end() -> None:
    clock, terminal = Clock(), Terminal()
    display = ProgressLine(1000, None, clock, terminal)
    for _ in range(20):
        clock.now += 1
        display.show(status(500))
    assert line(terminal) == "500 of 1,000 samples (50 %)"


def test_a_time_limit_counts_down_from_the_first_samples() -> None:
    clock, terminal = Clock(), Terminal()
    display = ProgressLine(None, 90.0, clock, terminal)
    display.show(joining(4))
    clock.now += 30
    display.show(status(1))
    assert line(terminal).endswith("1 min 30 s left")
    clock.now += 80
    display.show(status(1))
    assert line(terminal).endswith(" 10 s left")
    clock.now += 80
    display.show(status(1))
    assert line(terminal).endswith(" 0 s left")


def test_the_nearer_of_two_limits_is_shown() -> None:
    clock, terminal = Clock(), Terminal()
    display = ProgressLine(1_000_000, 60.0, clock, terminal)
    display.show(status(1000))
    clock.now += 1
    display.show(status(2000))
    assert line(terminal).endswith("59 s left")
    clock.now += 1
    display.show(status(999_000))
    assert line(terminal).endswith(" 0 s left")


@pytest.mark.parametrize(
    ("left", "words"),
    [
        (0.4, "0 s left"),
        (59.4, "59 s left"),
        (59.6, "1 min 00 s left"),
        (61, "1 min 01 s left"),
        (3599, "59 min 59 s left"),
        (3600, "1 h 00 min left"),
        (90_061, "25 h 01 min left"),
    ],
)
def test_times_are_told_as_people_do(left: float, words: str) -> None:
    terminal = Terminal()
    ProgressLine(None, left, Clock(), terminal).show(status(1))
    assert line(terminal) == f"1 samples · {words}"


def test_a_loss_that_is_not_a_number_is_shown_as_it_is() -> None:
    terminal = Terminal()
    ProgressLine(None, None, Clock(), terminal).show(status(1, loss=float("nan")))
    assert line(terminal) == "1 samples · loss nan"


def test_a_shorter_line_leaves_nothing_of_the_longer_one() -> None:
    terminal = Terminal()
    display = ProgressLine(None, None, Clock(), terminal)
    display.show(status(1_000_000, loss=1234.5))
    display.show(status(7))
    assert line(terminal) == "7 samples"
    display.end()
    assert terminal.lines() == [""]


def test_ending_twice_or_before_the_first_line_writes_nothing() -> None:
    terminal = Terminal()
    display = ProgressLine(None, None, Clock(), terminal)
    display.end()
    assert terminal.getvalue() == ""
    display.show(status(1))
    display.end()
    once = terminal.getvalue()
    display.end()
    assert terminal.getvalue() == once


@settings(deadline=None)
@given(
    st.lists(
        st.integers(0, 10**9).map(status)
        | st.integers(0, 4).map(joining)
        | st.text("abc ", min_size=1, max_size=80).map(str.strip).filter(bool)
        | st.none()
    ),
    st.floats(0, 20),
)
def test_words_are_never_lost_on_a_terminal_nor_elsewhere(
    history: list[Status | str | None], interval: float
) -> None:
    clock, terminal, file = Clock(), Terminal(), io.StringIO()
    displays = [ProgressLine(10**9, None, clock, stream) for stream in (terminal, file)]
    for what in history:
        clock.now += interval
        for display in displays:
            if isinstance(what, Status):
                display.show(what)
            elif isinstance(what, str):
                display.say(what)
            else:
                display.end()
    said = [what for what in history if isinstance(what, str)]
    assert terminal.lines()[:-1] == said, "each stands alone on its line, above the progress"
    written = file.getvalue().splitlines()
    assert [text for text in written if "samples" not in text] == said
    assert "\r" not in file.getvalue()


def test_elsewhere_a_line_comes_every_ten_seconds_and_not_before_the_first_samples() -> None:
    clock, file = Clock(0.0), io.StringIO()
    display = ProgressLine(1000, None, clock, file)
    display.show(joining(2))
    display.show(status(0))
    assert file.getvalue() == ""
    for second in range(1, 26):
        clock.now = float(second)
        display.show(status(second * 10))
    assert file.getvalue().splitlines() == [
        "10 of 1,000 samples (1 %)",
        "110 of 1,000 samples (11 %) · 10 samples/s · 1 min 29 s left",
        "210 of 1,000 samples (21 %) · 10 samples/s · 1 min 19 s left",
    ]


def test_without_a_stream_it_writes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert not sys.stderr.isatty()
    ProgressLine(None, None, Clock()).say("worker 3 on hostB is back")
    assert capsys.readouterr() == ("", "worker 3 on hostB is back\n")
