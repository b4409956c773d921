import functools
import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as PyTorch's own documentation writes it
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.metrics import F1, Accuracy, Metric, PerSample, metric


def distance(outputs, targets):
    """Whole numbers, so that sums are exact in any order."""
    return (outputs.argmax(dim=1) - targets).abs()[..., None].flatten(1).sum(dim=1)


# The first call of an operator can be slow; how long examples take is not what is tested.
unhurried = settings(deadline=None)

METRICS = [Accuracy(), F1(), F1("micro"), PerSample("distance", distance, better="lower")]


@st.composite
def batches(draw, least=0):
    """Outputs and targets, some classes rare or absent, perhaps with a length dim."""
    samples, classes = draw(st.integers(least, 40)), draw(st.integers(1, 6))
    extra = draw(st.sampled_from([(), (1,), (3,), (2, 2)]))
    used = draw(st.integers(1, classes))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    outputs = torch.randn(samples, classes, *extra, generator=generator)
    # Often right, so that every kind of count occurs.
    targets = torch.where(
        torch.rand(samples, *extra, generator=generator) < 0.5,
        outputs.argmax(dim=1).clamp(max=used - 1),
        torch.randint(used, (samples, *extra), generator=generator),
    )
    return outputs, targets


def positions(outputs, targets):
    """Predicted and actual classes for the oracles, by NumPy alone."""
    return outputs.numpy().argmax(axis=1).ravel(), targets.numpy().ravel()


def f1_oracle(predicted, actual, average):
    """From the definitions of precision and recall, a class at a time."""
    scores, weights = [], []
    for label in set(predicted) | set(actual):
        hits = np.sum((predicted == label) & (actual == label))
        precision = hits / np.sum(predicted == label) if label in predicted else 0.0
        recall = hits / np.sum(actual == label) if label in actual else 0.0
        both = precision + recall
        scores.append(2 * precision * recall / both if both else 0.0)
        weights.append(hits)
    # With one class per target every miss is one class's excess and another's lack, so micro
    # precision, micro recall and their mean are all the fraction of hits.
    return np.mean(scores) if average == "macro" else sum(weights) / len(actual)


@pytest.mark.parametrize("measure", METRICS, ids=lambda measure: measure.name)
@unhurried
@given(data=st.data(), batch=batches())
def test_statistics_of_shards_sum_to_those_of_the_whole(measure, data, batch):
    outputs, targets = batch
    cuts = data.draw(st.lists(st.integers(0, len(targets)), max_size=5).map(sorted))
    sides = [0, *cuts, len(targets)]
    shards = [slice(a, b) for a, b in itertools.pairwise(sides)]
    parts = [measure.statistics(outputs[shard], targets[shard]) for shard in shards]
    whole = measure.statistics(outputs, targets)
    assert torch.equal(torch.stack(parts).sum(dim=0), whole)
    assert whole.dtype == torch.float64
    assert whole.dim() == 1


@pytest.mark.parametrize("measure", METRICS, ids=lambda measure: measure.name)
@unhurried
@given(batch=batches(least=1), seed=st.integers(0, 2**32))
def test_the_order_of_samples_does_not_matter(measure, batch, seed):
    outputs, targets = batch
    order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(seed))
    assert torch.equal(
        measure.statistics(outputs[order], targets[order]), measure.statistics(outputs, targets)
    )


@unhurried
@given(batches(least=1))
def test_accuracy_is_the_fraction_of_hits(batch):
    predicted, actual = positions(*batch)
    value = Accuracy().value(Accuracy().statistics(*batch))
    assert value == pytest.approx(np.mean(predicted == actual))


@pytest.mark.parametrize("average", ["macro", "micro"])
@unhurried
@given(batch=batches(least=1))
def test_f1_is_the_mean_of_precision_and_recall(average, batch):
    measure = F1(average)
    value = measure.value(measure.statistics(*batch))
    assert value == pytest.approx(f1_oracle(*positions(*batch), average))


def test_f1_leaves_out_a_class_that_neither_occurs_nor_is_predicted():
    outputs, targets = torch.eye(5)[[0, 1, 1]], torch.tensor([0, 1, 1])
    assert F1().value(F1().statistics(outputs, targets)) == 1.0
    # Predicted once, and wrongly: now it counts, as nought.
    outputs = torch.eye(5)[[0, 1, 4]]
    assert F1().value(F1().statistics(outputs, targets)) == pytest.approx((1 + 2 / 3 + 0) / 3)


@pytest.mark.parametrize("measure", METRICS, ids=lambda measure: measure.name)
def test_no_samples_add_nothing_and_have_no_value(measure):
    nothing = measure.statistics(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
    assert nothing.count_nonzero() == 0
    assert nothing.shape == measure.statistics(torch.zeros(2, 4), torch.tensor([0, 1])).shape
    assert math.isnan(measure.value(nothing))


@unhurried
@given(batches(least=1))
def test_a_function_per_sample_is_averaged_over_samples(batch):
    outputs, targets = batch

    def loss(outputs, targets):
        each = F.cross_entropy(outputs, targets, reduction="none")
        return each[..., None].flatten(1).mean(dim=1)

    measure = PerSample("nats", loss, better="lower")
    parts = sum(
        measure.statistics(outputs[i : i + 3], targets[i : i + 3])
        for i in range(0, len(targets), 3)
    )
    assert measure.value(parts) == pytest.approx(F.cross_entropy(outputs, targets).item(), rel=1e-5)


def test_a_function_that_averages_already_is_refused():
    with pytest.raises(ValueError, match=r"'nats' gave a tensor of shape \[\].*one value per"):
        PerSample("nats", F.cross_entropy).statistics(torch.zeros(3, 2), torch.tensor([0, 1, 1]))


def test_statistics_keep_no_graph():
    outputs = torch.randn(4, 3, requires_grad=True)
    for measure in (*METRICS, PerSample("first", lambda y, _: y[:, 0])):
        assert not measure.statistics(outputs, torch.tensor([0, 1, 2, 0])).requires_grad


@pytest.mark.parametrize("measure", [Accuracy(), F1()])
@pytest.mark.parametrize(
    ("outputs", "targets", "complaint"),
    [
        (torch.zeros(3), torch.zeros(3, dtype=torch.int64), "do not fit"),
        (torch.zeros(3, 2), torch.zeros(4, dtype=torch.int64), "do not fit"),
        (torch.zeros(3, 5, 2), torch.zeros(3, 5, dtype=torch.int64), "do not fit"),
        (torch.zeros(3, 2), torch.zeros(3), "must be class indices"),
        (torch.zeros(3, 2), torch.tensor([0, 1, 2]), "a target is class 2, of 2 classes"),
        (torch.zeros(3, 2), torch.tensor([0, -100, 1]), "a target is class -100"),
    ],
)
def test_what_is_not_classes_is_refused(measure, outputs, targets, complaint):
    with pytest.raises(ValueError, match=complaint):
        measure.statistics(outputs, targets)


@pytest.mark.parametrize(
    ("spec", "expected"), [("accuracy", Accuracy()), ("f1", F1()), ("f1_micro", F1("micro"))]
)
def test_a_word_stands_for_the_metric_of_that_name(spec, expected):
    assert metric(spec) == expected
    assert metric(spec).name == spec


def test_a_metric_stands_for_itself_and_a_function_for_its_mean():
    assert all(metric(measure) is measure for measure in METRICS)
    assert metric(distance) == PerSample("distance", distance)
    assert all(isinstance(measure, Metric) for measure in METRICS)
    assert [measure.better for measure in METRICS] == ["higher"] * 3 + ["lower"]


@pytest.mark.parametrize(("word", "nearest"), [("acuracy", "accuracy"), ("F1", "f1"), ("%", "")])
def test_an_unknown_word_is_answered_with_the_nearest(word, nearest):
    with pytest.raises(ValueError, match=f"no metric '{word}'; did you mean '{nearest}"):
        metric(word)


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        (Accuracy, r"Accuracy is a class; give a metric of it, Accuracy\("),
        (functools.partial(distance), "has no name of its own"),
        (3, "not 3"),
    ],
)
def test_what_is_no_metric_is_refused(spec, complaint):
    with pytest.raises(TypeError, match=complaint):
        metric(spec)


@pytest.mark.parametrize(
    "make", [lambda: F1("weighted"), lambda: PerSample("x", distance, better="bigger")]
)
def test_an_unknown_option_is_refused(make):
    with pytest.raises(ValueError, match="must be"):
        make()
