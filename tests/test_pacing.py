"""How slowed workers are written."""

import pytest

from manyhands.live.worker.slowdown import Slowdown
from manyhands.pacing import Pace, factor, words


@pytest.mark.parametrize("text", ["2:4x", "0:1x", "all:1.2x", "12:10.25x", "1:1.2000001x"])
def test_a_pace_is_read_and_written(text: str) -> None:
    assert str(Pace.read(text)) == text
    assert Pace.read(str(Pace.read(text))) == Pace.read(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("2", "expected a worker and a factor"),
        ("2=4x", "expected a worker and a factor"),
        ("-1:4x", "expected a worker and a factor"),
        ("2:0.5x", "1 or more, got 0.5"),
    ],
)
def test_a_malformed_pace_is_refused_with_the_form(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Pace.read(text)


def test_a_worker_that_is_not_there_cannot_be_slowed() -> None:
    Pace.read("3:2x").check(4)
    Pace.read("all:2x").check(1)
    with pytest.raises(ValueError, match=r"names worker 4: the run has workers 0 to 3"):
        Pace.read("4:2x").check(4)


def test_factors_multiply_and_words_name_everybody() -> None:
    paces = tuple(map(Pace.read, ("all:1.5x", "2:4x")))
    assert [factor(paces, rank) for rank in range(4)] == [1.5, 1.5, 6.0, 1.5]
    assert words(paces) == (
        "all workers compute 1.5 times as long, worker 2 computes 4 times as long"
    )
    assert words(()) == ""


class Clock:
    """Seconds that pass when somebody says so; sleeps last longer than asked, as real ones do."""

    def __init__(self, oversleep: float) -> None:
        self.now = 0.0
        self.oversleep = oversleep

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds + self.oversleep


@pytest.mark.parametrize("oversleep", [0.0, 0.002])
def test_computing_takes_so_many_times_as_long_however_long_sleeps_take(oversleep: float) -> None:
    clock = Clock(oversleep)
    pacer = Slowdown(3.0, clock, clock.sleep)
    paced = 0.0
    for _ in range(100):
        clock.now += 0.5  # somebody else's time, which is not computing
        pacer.begin()
        begun = clock.now
        for _ in range(4):
            clock.now += 0.001
            pacer.stretch()
        paced += clock.now - begun
    assert paced == pytest.approx(3.0 * 400 * 0.001, abs=0.002)


def test_what_is_ready_is_told_late_and_in_order() -> None:
    clock = Clock(0.0)
    pacer = Slowdown(2.0, clock, clock.sleep)
    told = []
    ready = pacer.before(lambda shard: told.append((shard, clock.now)))
    assert ready is not None
    pacer.begin()
    for shard in (1, 0):
        clock.now += 1.0
        ready(shard)
    assert told == [(1, 2.0), (0, 4.0)]


def test_nobody_is_slowed_by_a_factor_of_one() -> None:
    def never(_: float) -> None:
        raise AssertionError

    pacer = Slowdown(1.0, sleep=never)
    assert pacer.before(print) is print
    pacer.stretch()
