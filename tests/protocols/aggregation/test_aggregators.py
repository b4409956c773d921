"""Aggregators against NumPy and against the papers, and what they refuse."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manyhands.notation import NotationError
from manyhands.protocols.aggregation import ALL, CATALOG, Clipped, Krum, Median, Trimmed
from manyhands.protocols.aggregation import aggregator as aggregator_module
from manyhands.strategies import strategy


def updates(count: int, size: int = 40, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed))


def combine(one, rows: torch.Tensor, weights=None) -> torch.Tensor:
    given = [1.0] * len(rows) if weights is None else weights
    (result,) = one.combine([[row] for row in rows], given, 1)
    return result


def krum_scores(rows: np.ndarray, f: int) -> list[float]:
    """Blanchard et al., section 4: the sum over the n − f − 2 closest vectors."""
    n = len(rows)
    scores = []
    for i in range(n):
        distances = sorted(np.sum((rows[i] - rows[j]) ** 2) for j in range(n) if j != i)
        scores.append(sum(distances[: n - f - 2]))
    return scores


@given(count=st.integers(1, 9), seed=st.integers(0, 99))
def test_the_median_is_that_of_numpy(count, seed) -> None:
    rows = updates(count, seed=seed)
    expected = np.median(rows.double().numpy(), axis=0)
    np.testing.assert_allclose(combine(Median(), rows).numpy(), expected, rtol=1e-6)


@given(f=st.integers(0, 3), more=st.integers(0, 3), seed=st.integers(0, 99))
def test_the_trimmed_mean_is_that_of_numpy(f, more, seed) -> None:
    rows = updates(2 * f + 1 + more, seed=seed)
    ordered = np.sort(rows.double().numpy(), axis=0)
    expected = ordered[f : len(ordered) - f].mean(axis=0)
    np.testing.assert_allclose(combine(Trimmed(f), rows).numpy(), expected, rtol=1e-4, atol=1e-6)


def test_the_trimmed_mean_is_weighted_by_the_samples_of_what_is_left() -> None:
    rows = torch.tensor([[0.0], [1.0], [4.0], [100.0]])
    assert combine(Trimmed(1), rows, [9.0, 3.0, 1.0, 9.0]).item() == pytest.approx(7 / 4)


def test_nothing_trimmed_is_the_mean_to_the_bit() -> None:
    rows, weights = updates(7, size=1000), [float(one) for one in (3, 1, 4, 1, 5, 9, 2)]
    total = torch.zeros(1000)
    for row, weight in zip(rows, weights, strict=True):
        total.add_(row, alpha=weight)
    assert torch.equal(combine(Trimmed(0), rows, weights), total.mul_(1 / 25.0))


@given(f=st.integers(0, 3), more=st.integers(0, 4), seed=st.integers(0, 99))
def test_krum_chooses_as_in_the_paper(f, more, seed) -> None:
    rows = updates(2 * f + 3 + more, seed=seed)
    rows[:f] *= 5
    chosen = int(np.argmin(krum_scores(rows.double().numpy(), f)))
    assert torch.equal(combine(Krum(f), rows), rows[chosen])


@given(f=st.integers(0, 3), more=st.integers(0, 4), data=st.data(), seed=st.integers(0, 99))
def test_multi_krum_averages_the_updates_with_the_least_scores(f, more, data, seed) -> None:
    rows = updates(2 * f + 3 + more, seed=seed)
    rows[:f] *= 50
    average = data.draw(st.integers(1, len(rows) - f))
    scores = krum_scores(rows.double().numpy(), f)
    kept = sorted(np.argsort(scores, kind="stable")[:average])
    assert average < len(rows) - f or not set(kept) & set(range(f)), "wrong updates are left out"
    expected = rows.double().numpy()[kept].mean(axis=0)
    got = combine(Krum(f, average=average), rows).numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)


def test_multi_krum_of_all_updates_is_the_mean_to_the_bit() -> None:
    rows, weights = updates(7, size=1000), [float(one) for one in (3, 1, 4, 1, 5, 9, 2)]
    mean = combine(Trimmed(0), rows, weights)
    assert torch.equal(combine(Krum(0, average=7), rows, weights), mean)


@pytest.mark.parametrize(
    "one", [Median(), Trimmed(2), Krum(2), Krum(2, average=5), Krum(2, average=8)], ids=str
)
def test_two_wrong_updates_of_ten_have_no_effect_worth_mentioning(one) -> None:
    rows = torch.ones(10, 40) + 0.1 * updates(10)
    rows[3], rows[7] = -1e6, 1e30
    assert (combine(one, rows) - 1).abs().max() < 0.5


def test_clipped_updates_have_the_norm_c_at_most() -> None:
    rows = updates(3)
    rows[0] *= 1e6
    (whole,) = Clipped(2.0).combine([[row] for row in rows[:1]], [5.0], 1)
    assert whole.norm().item() == pytest.approx(2.0)
    assert torch.equal(combine(Clipped(1e9), rows), combine(Trimmed(0), rows))


def test_clipping_is_over_all_dtypes_and_leaves_buffers() -> None:
    row = [torch.full((2,), 3.0), torch.full((2,), 4.0, dtype=torch.float64), torch.ones(1)]
    narrow, wide, buffer = Clipped(1.0).combine([row], [1.0], 2)
    norm = (narrow.double().square().sum() + wide.square().sum()).sqrt()
    assert norm.item() == pytest.approx(1.0)
    assert torch.equal(buffer, torch.ones(1))


def test_krum_takes_the_buffers_of_the_chosen_update() -> None:
    rows = [[torch.full((3,), float(one)), torch.tensor([float(one)])] for one in (0, 1, 1, 1, 9)]
    vector, buffer = Krum(1).combine(rows, [1.0] * 5, 1)
    assert (vector[0].item(), buffer.item()) == (1.0, 1.0)


@pytest.mark.parametrize(
    "one", [Median(), Trimmed(3), Krum(3), Krum(1, average=9), Clipped(1.0)], ids=str
)
def test_fewer_updates_than_promised_still_give_one(one) -> None:
    for count in (1, 2, 3, 4):
        assert combine(one, updates(count)).shape == (40,)


@pytest.mark.parametrize("one", [Median(), Trimmed(1)], ids=str)
def test_columns_are_sorted_in_pieces(one, monkeypatch) -> None:
    rows = updates(5, size=100)
    whole = combine(one, rows)
    monkeypatch.setattr(aggregator_module, "_COLUMNS", 7)
    assert torch.equal(combine(one, rows), whole)


def test_every_aggregator_has_a_text_and_an_example_that_can_be_read() -> None:
    for cls in ALL:
        example = cls.__doc__.partition("Example: `")[2].partition("`")[0]
        assert cls.name in example
        assert isinstance(strategy(example).aggregate, cls)
        assert CATALOG.read(str(strategy(example).aggregate)) == strategy(example).aggregate


@pytest.mark.parametrize(
    ("text", "workers", "words"),
    [
        (
            "synchronous(aggregate=krum(2))",
            6,
            "needs at least 7 .*or a smaller f$",
        ),
        (
            "synchronous(aggregate=krum(1, average=7))",
            7,
            "needs at least 8 .*or a smaller average",
        ),
        ("synchronous(aggregate=trimmed(2))", 4, "needs at least 5 updates in a step"),
        ("softsync(wait_for=4, aggregate=krum(1))", 10, "needs at least 5 updates in a step"),
        ("synchronous(servers=2, aggregate=clipped(1.0))", 4, "use servers=1"),
    ],
)
def test_too_few_updates_are_refused_in_words(text, workers, words) -> None:
    with pytest.raises(ValueError, match=words):
        strategy(text).check(workers)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("asynchronous(aggregate=median)", "applies every update alone"),
        ("ssp(aggregate=median)", "applies every update alone"),
        ("averaging(aggregate=median)", "averages replicas"),
        ("allreduce(aggregate=median)", "a collective returns sums"),
        ("hierarchical(inner=synchronous(aggregate=median))", "leave out aggregate"),
        ("synchronous(aggregate=trimmed(-1))", "f must be 0 or more"),
        ("synchronous(aggregate=krum(1, average=0))", "average must be 1 or more"),
        ("synchronous(aggregate=clipped(0.0))", "c must be above 0"),
        ("synchronous(aggregate=middle)", "median"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(text, words) -> None:
    with pytest.raises(NotationError, match=words):
        strategy(text)


def test_a_word_is_no_aggregator() -> None:
    from manyhands.protocols import Synchronous

    with pytest.raises(ValueError, match="aggregate must be mean or an aggregator"):
        Synchronous(aggregate="median")
