"""A journal gives back what was written, wherever the process that wrote it was killed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.leasing.journal import InputJournal, PrivateAreas


class Killed(Exception):  # noqa: N818 - an event
    pass


class Fragile(PrivateAreas):
    """Areas whose writer is killed after so many bytes; a cleared area counts as one byte."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    def clear(self, area: int) -> None:
        self._spend(1)
        super().clear(area)

    def append(self, area: int, data: bytes) -> None:
        fit = min(len(data), self.left)
        super().append(area, data[:fit])
        self._spend(len(data))

    def _spend(self, count: int) -> None:
        if count > self.left:
            self.left = 0
            raise Killed
        self.left -= count


def write(areas: Fragile, inputs: list[bytes], most: int) -> tuple[int, int]:
    """Sum inputs up, shortening the journal to the sum; inputs that took effect, and were begun."""
    done = begun = 0
    try:
        journal = InputJournal(areas, most)
        total = sum(int.from_bytes(record, "little") for record in journal.recover())
        for one in inputs:
            begun += 1
            journal.append(one)
            done += 1
            total += int.from_bytes(one, "little")
            if journal.is_long:
                journal.shorten([total.to_bytes(8, "little")])
    except Killed:
        pass
    return done, begun


def total(areas: PrivateAreas) -> int:
    return sum(int.from_bytes(record, "little") for record in InputJournal(areas).recover())


@given(st.integers(1, 5), st.integers(0, 600), st.integers(1, 600))
def test_no_input_that_took_effect_is_lost_wherever_the_writer_is_killed(most, first, second):
    # Bit n of the sum stands for input n, so that a lost or doubled input is seen.
    inputs = [(1 << number).to_bytes(8, "little") for number in range(40)]
    areas = Fragile(first)
    done, begun = write(areas, inputs, most)
    areas.left = second
    more, more_begun = write(areas, inputs[begun:], most)
    areas.left = 10**9
    found = total(areas)
    sure = sum(1 << number for number in (*range(done), *range(begun, begun + more)))
    unsure = {begun - 1, begun + more_begun - 1}
    assert found & sure == sure
    extra = {number for number in range(40) if (found & ~sure) >> number & 1}
    assert extra <= unsure, "only an input that was being written may count or not"


def test_a_new_journal_is_empty_and_continues():
    areas = PrivateAreas()
    journal = InputJournal(areas, most=2)
    assert journal.recover() == []
    journal.append(b"one")
    assert not journal.is_long
    journal.append(b"")
    assert journal.is_long
    successor = InputJournal(areas, most=2)
    assert successor.recover() == [b"one", b""]
    successor.shorten([b"both"])
    successor.append(b"three")
    assert InputJournal(areas).recover() == [b"both", b"three"]


@pytest.mark.parametrize("cut", range(1, 14))
def test_a_record_that_is_torn_is_dropped_and_what_follows_is_not(cut):
    areas = PrivateAreas()
    journal = InputJournal(areas)
    journal.recover()
    journal.append(b"whole")
    journal.append(b"torn.")
    used = max((0, 1), key=lambda area: len(areas.read(area)))
    del areas._areas[used][-cut:]
    successor = InputJournal(areas)
    assert successor.recover() == [b"whole"]
    successor.append(b"next")
    assert InputJournal(areas).recover() == [b"whole", b"next"]
