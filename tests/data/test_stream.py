"""Streams are read forward, by position, each sample with its own seed."""

import random

import pytest
from torch.utils.data import IterableDataset, TensorDataset

from manyhands.data.stream import StreamReader, is_stream


class Counted(IterableDataset):
    """Numbers with a random one each; counts how often it is read from the beginning."""

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.begun = 0

    def __iter__(self):
        self.begun += 1
        for number in range(self.samples):
            yield number, random.random()  # noqa: S311 - not a secret


def seeds(position: int) -> None:
    random.seed(position)


def expected(position: int) -> tuple[int, float]:
    seeds(position)
    return position, random.random()  # noqa: S311 - not a secret


def test_positions_in_order_are_read_in_one_pass() -> None:
    data = Counted(50)
    reader = StreamReader(data)
    assert [reader.sample(at, seeds) for at in range(0, 50, 7)] == [
        expected(at) for at in range(0, 50, 7)
    ]
    assert data.begun == 1


def test_parts_of_a_batch_may_be_taken_in_any_order_without_reading_again() -> None:
    data = Counted(50)
    reader = StreamReader(data)
    for begin in range(0, 40, 8):
        assert reader.end_by(begin, begin + 8, seeds) is None
        for at in (begin + 6, begin + 1, begin + 7, begin):
            assert reader.sample(at, seeds) == expected(at)
    assert data.begun == 1


def test_an_earlier_sample_is_the_same_when_it_is_read_again() -> None:
    data = Counted(50)
    reader = StreamReader(data)
    assert reader.sample(40, seeds) == expected(40)
    assert reader.sample(3, seeds) == expected(3)
    assert reader.sample(41, seeds) == expected(41)
    assert data.begun == 2


@pytest.mark.parametrize("samples", [0, 1, 15, 16, 17, 24])
def test_the_end_is_known_with_the_batch_that_it_ends(samples: int) -> None:
    reader = StreamReader(Counted(samples))
    found = [reader.end_by(begin, begin + 8, seeds) for begin in range(0, 32, 8)]
    assert found == [samples if samples <= stop else None for stop in (8, 16, 24, 32)]
    with pytest.raises(IndexError, match=f"the stream has {samples} samples"):
        reader.sample(samples, seeds)


def test_an_end_that_was_found_stays_known_when_earlier_samples_are_read() -> None:
    reader = StreamReader(Counted(20))
    assert reader.end_by(16, 24, seeds) == 20
    assert reader.sample(0, seeds) == expected(0)
    assert reader.end_by(0, 8, seeds) is None
    assert reader.end_by(16, 24, seeds) == 20


def test_what_is_a_stream() -> None:
    class Sized(Counted):
        def __len__(self) -> int:
            return self.samples

    class Plain:
        def __iter__(self):
            return iter(range(3))

    assert is_stream(Counted(3))
    assert is_stream(Sized(3))
    assert is_stream(Plain())
    assert not is_stream(TensorDataset())
    assert not is_stream([1, 2])


class Resumable:
    """A stream of numbers with a state; `skips` loses samples when it is continued."""

    def __init__(self, size: int, skips: int = 0) -> None:
        self.size, self.skips, self.at, self.read = size, skips, 0, 0

    def __iter__(self):
        while self.at < self.size:
            self.at += 1
            self.read += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"] + (self.skips if state["at"] else 0)


def read(reader: StreamReader, start: int, stop: int) -> list[int]:
    end = reader.end_by(start, stop, lambda _: None)
    return [reader.sample(at, lambda _: None) for at in range(start, min(stop, end or stop))]


def test_a_later_reader_begins_at_the_place_of_an_earlier_one():
    reader = StreamReader(Resumable(100), places=True)
    for start in range(0, 60, 10):
        assert read(reader, start, start + 10) == list(range(start, start + 10))
    place = reader.place
    assert place is not None
    assert (place.position, place.state) == (60, {"at": 60})
    data = Resumable(100)
    later = StreamReader(data, place)
    assert read(later, 60, 70) == list(range(60, 70))
    assert data.read == 11
    assert later.failed == ""
    # An earlier sample is there, too.
    assert read(later, 5, 8) == [5, 6, 7]
    assert read(later, 90, 110) == list(range(90, 100))


def test_a_place_that_does_not_fit_is_not_used():
    reader = StreamReader(Resumable(100), places=True)
    read(reader, 0, 10)
    later = StreamReader(Resumable(100, skips=3), reader.place)
    assert read(later, 10, 20) == list(range(10, 20))
    assert later.failed == "the next sample was another one"


def test_a_stream_without_a_state_is_read_from_its_beginning():
    reader = StreamReader(Resumable(100), places=True)
    read(reader, 0, 10)
    later = StreamReader(list(range(100)), reader.place, places=True)
    assert read(later, 10, 20) == list(range(10, 20))
    assert later.place is None


def test_the_end_of_a_stream_is_no_place():
    reader = StreamReader(Resumable(15), places=True)
    assert read(reader, 0, 10) == list(range(10))
    place = reader.place
    assert read(reader, 10, 20) == list(range(10, 15))
    assert reader.place == place
