"""Parts of a stream's global batches cover it, wherever it ends."""

import pytest

from manyhands.sampling.division import nested, part
from manyhands.sampling.stream_parts import StreamPart


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("end", [None, 8, 9, 10, 12, 15, 16])
def test_lockstep_workers_divide_what_exists_evenly(workers: int, end: int | None) -> None:
    total = 8 if end is None else end - 8
    taken: list[int] = []
    for rank in range(workers):
        own = nested(8, rank, workers, 1)
        share = StreamPart(8, 8, 8 + own.start, 8 + own.stop, (rank, workers, 1))
        positions, counting, settled = share.settle(end)
        assert settled == total
        taken += list(range(*positions))[:counting]
        if total:
            assert positions[1] > positions[0]
    assert taken == list(range(8, 8 + total))


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
@pytest.mark.parametrize("end", [None, 3, 8, 9, 12, 16])
def test_leases_reach_as_far_as_the_stream(workers: int, end: int | None) -> None:
    total = 8 if end is None else max(0, end - 8)
    taken: list[int] = []
    for rank in range(workers):
        own = part(8, rank, workers)
        positions, counting, settled = StreamPart(8, 8, 8 + own.start, 8 + own.stop).settle(end)
        assert settled == total
        assert counting == positions[1] - positions[0]
        taken += range(*positions)
    assert taken == list(range(8, 8 + total))
