"""The formulas against cases small enough to count by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.costs import Collective, Forecast, TensorSize, sent_per_worker
from manyhands.placements import AllReduce, Single

MEBIBYTE = 1024 * 1024


@pytest.mark.parametrize(
    ("kind", "size", "workers", "sent"),
    [
        # Two workers, two halves each: one half goes out to be summed, one sum comes back.
        ("allreduce", 8, 2, 8),
        # Three workers, thirds of 4: two rounds of summing and two of gathering, a third each.
        ("allreduce", 12, 3, 16),
        ("allreduce", 100, 4, 150),
        ("allreduce", 100, 1, 0),
        ("allreduce", 0, 5, 0),
        # The source's 12 bytes reach two others: 24 bytes sent by three workers.
        ("broadcast", 12, 3, 8),
        ("broadcast", 12, 2, 6),
        ("broadcast", 12, 1, 0),
    ],
)
def test_what_a_worker_sends_is_what_one_counts_by_hand(kind, size, workers, sent) -> None:
    assert sent_per_worker(Collective(kind, size), workers) == pytest.approx(sent)


@given(st.integers(1, 10**9), st.integers(1, 1000))
def test_a_ring_simulated_chunk_by_chunk_sends_what_the_formula_says(
    chunk: int, workers: int
) -> None:
    size = chunk * workers
    passed = sum(chunk for _phase in ("reduce", "gather") for _round in range(workers - 1))
    assert sent_per_worker(Collective("allreduce", size), workers) == pytest.approx(passed)
    everybody = sent_per_worker(Collective("broadcast", size), workers) * workers
    assert everybody == pytest.approx(size * (workers - 1))


@given(st.sampled_from(["allreduce", "broadcast"]), st.integers(0, 10**9), st.integers(1, 999))
def test_one_worker_sends_nothing_and_no_number_of_workers_reaches_the_bound(
    kind, size: int, workers: int
) -> None:
    bound = size * (2 if kind == "allreduce" else 1)
    assert sent_per_worker(Collective(kind, size), 1) == 0
    assert sent_per_worker(Collective(kind, size), workers) <= bound
    more = sent_per_worker(Collective(kind, size), workers + 1)
    assert more >= sent_per_worker(Collective(kind, size), workers)


def test_a_forecast_adds_up_its_steps_and_leaves_the_start_out() -> None:
    forecast = Forecast(
        start=(Collective("broadcast", 1000),),
        step=(Collective("allreduce", 8), Collective("allreduce", 12), Collective("broadcast", 4)),
        memory=0,
    )
    assert forecast.sent_per_step(2) == pytest.approx(8 + 12 + 2)
    assert forecast.sent_per_step(1) == 0
    assert Forecast(start=(), step=(), memory=0).sent_per_step(7) == 0


def test_single_holds_parameters_and_gradients_and_sends_nothing() -> None:
    sizes = [TensorSize("a", 100), TensorSize("frozen", 30, trained=False)]
    forecast = Single().forecast(sizes, 1)
    assert forecast == Forecast(start=(), step=(), memory=100 + 100 + 30)


def test_allreduce_fills_buckets_from_the_last_layer() -> None:
    sizes = [
        TensorSize("first", 3 * MEBIBYTE),
        TensorSize("second", 2 * MEBIBYTE),
        TensorSize("frozen", 5 * MEBIBYTE, trained=False),
        TensorSize("third", MEBIBYTE // 2),
        TensorSize("fourth", MEBIBYTE // 2),
    ]
    forecast = AllReduce(bucket_mb=3).forecast(sizes, 2)
    assert forecast.start == (Collective("broadcast", 11 * MEBIBYTE),)
    # A bucket closes at three mebibytes or more.
    assert [one.size for one in forecast.step] == [3 * MEBIBYTE, 3 * MEBIBYTE]
    assert {one.kind for one in forecast.step} == {"allreduce"}
    assert forecast.memory == (11 + 6) * MEBIBYTE
    assert forecast.sent_per_step(2) == 6 * MEBIBYTE


def test_all_buckets_have_the_same_limit() -> None:
    sizes = [TensorSize(str(number), MEBIBYTE // 4) for number in range(5)]
    forecast = AllReduce(bucket_mb=0.5).forecast(sizes, 2)
    half = MEBIBYTE // 2
    assert [one.size for one in forecast.step] == [half, half, MEBIBYTE // 4]


@given(
    st.lists(st.tuples(st.integers(1, 8 * MEBIBYTE), st.booleans()), max_size=30),
    st.floats(0.1, 25),
    st.integers(1, 16),
)
def test_every_trained_byte_is_in_one_bucket_whatever_their_size(
    tensors: list[tuple[int, bool]], bucket_mb: float, workers: int
) -> None:
    sizes = [TensorSize(str(n), size, trained) for n, (size, trained) in enumerate(tensors)]
    forecast = AllReduce(bucket_mb=bucket_mb).forecast(sizes, workers)
    trained = sum(one.size for one in sizes if one.trained)
    assert sum(one.size for one in forecast.step) == trained
    assert all(one.size > 0 for one in forecast.step)
    assert forecast.memory == trained + sum(one.size for one in sizes)
    whole = sent_per_worker(Collective("allreduce", trained), workers)
    assert forecast.sent_per_step(workers) == pytest.approx(whole)
