"""How many targets a mean is taken over is found inside of the loss."""

import warnings
from functools import partial

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn

from manyhands.parameters.weights.loss_weight import CountedLoss

OUTPUTS = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
TARGETS = torch.tensor([0, 1, -100, 3, -100, -100])


def in_a_function(outputs, targets):
    return F.cross_entropy(outputs, targets, ignore_index=-100) * 1.0


@pytest.mark.parametrize(
    ("loss", "counted"),
    [
        (F.cross_entropy, 3),
        (nn.CrossEntropyLoss(), 3),
        (partial(F.cross_entropy, label_smoothing=0.1), 3),
        (in_a_function, 3),
        (lambda outputs, targets: F.nll_loss(outputs.log_softmax(1), targets), 3),
        (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0, 4.0])), 7),
        # Nothing is known of these: a mean counts for its samples.
        (nn.CrossEntropyLoss(reduction="sum"), 6),
        (lambda outputs, targets: (outputs.sum(1) - targets).square().mean(), 6),
    ],
)
def test_means_of_parts_add_up_to_the_mean(loss, counted):
    whole = CountedLoss(loss)
    mean = whole(OUTPUTS, TARGETS)
    assert torch.equal(mean, loss(OUTPUTS, TARGETS))
    assert whole.sums(mean, 6)[0].item() == counted
    if counted != 6:
        sums = sum(
            whole.sums(whole(o, t), len(t))
            for o, t in zip(OUTPUTS.split(2), TARGETS.split(2), strict=True)
        )
        assert sums[1] / sums[0] == pytest.approx(mean.item(), rel=1e-5)


def weigh(loss, some):
    """The weight of the loss of some samples, as a strategy asks for it."""
    return loss.weight(loss(OUTPUTS[some], TARGETS[some]), len(TARGETS[some]))


def test_warns_once_where_means_are_weighed_by_samples():
    loss = CountedLoss(in_a_function)
    loss.decide(counts=False)
    assert weigh(loss, slice(2)) is None
    assert weigh(loss, slice(3)) is None
    loss.divided = "allreduce()"
    weigh(loss, slice(2))
    with pytest.warns(
        UserWarning, match=r"counts 2 of 3 targets.*allreduce\(\) weighs the workers"
    ):
        weigh(loss, slice(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        weigh(loss, slice(6))


def test_says_nothing_where_the_weight_is_exact():
    loss = CountedLoss(F.cross_entropy)
    loss.divided = "allreduce()"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for some in (slice(0, 2), slice(3, 4)):
            assert weigh(loss, some).item() == len(TARGETS[some])
        assert not loss.needs
        assert weigh(loss, slice(6)).item() == 3
        assert loss.needs


def test_targets_are_counted_where_a_sample_has_several_or_classes_have_weights():
    targets = TARGETS.view(3, 2)
    loss = CountedLoss(lambda outputs, targets: F.cross_entropy(outputs, targets.flatten()))
    assert loss.weight(loss(OUTPUTS, targets), 3).item() == 3
    by_class = CountedLoss(nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0, 4.0])))
    assert weigh(by_class, slice(6)).item() == 7
    single = CountedLoss(F.cross_entropy)
    assert weigh(single, slice(6)).item() == 3


def test_the_mean_over_no_targets_is_zero():
    loss, outputs = CountedLoss(F.cross_entropy), OUTPUTS[4:].clone().requires_grad_()
    mean = loss(outputs, TARGETS[4:])
    mean.backward()
    assert mean.item() == 0
    assert (outputs.grad == 0).all()


def both(outputs, targets):
    return F.cross_entropy(outputs, targets) + F.cross_entropy(outputs[:1], targets[:1])


def test_warns_once_if_one_weight_cannot_weigh_several_means():
    loss = CountedLoss(both)
    loss.divided = "synchronous()"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert weigh(loss, slice(0, 2)).item() == 2
    with pytest.warns(UserWarning, match=r"several means, over 1 and 1 targets.*synchronous\(\)"):
        weigh(loss, slice(0, 1))


def printed(outputs, targets):
    """A mean for the eyes only: without gradients, of outputs without, or not returned."""
    with torch.no_grad():
        F.cross_entropy(outputs, targets)
    F.cross_entropy(outputs.detach(), targets)
    F.cross_entropy(outputs, targets)
    return outputs.square().mean()


def test_a_mean_that_is_no_part_of_the_loss_has_no_weight():
    loss = CountedLoss(printed)
    value = loss(OUTPUTS.clone().requires_grad_(), TARGETS)
    assert loss.weight(value, 6) is None
    assert not loss.needs
    # Nor has it one in an evaluation, where nothing has gradients.
    evaluated = CountedLoss(printed, loss.aside)
    with torch.no_grad():
        assert evaluated.sums(evaluated(OUTPUTS, TARGETS), 6)[0] == 6
