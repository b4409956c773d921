import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from manyhands.models import MLP

widths = st.integers(1, 9)


def test_takes_mnist_unless_told_otherwise():
    model = MLP()
    assert model(torch.zeros(3, 1, 28, 28)).shape == (3, 10)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert f"{count:,}" in MLP.__doc__


@settings(deadline=None)
@given(widths, st.lists(widths, max_size=3), widths)
def test_layers_have_the_widths_asked_for_and_logits_come_out(inputs, hidden, outputs):
    model = MLP(inputs, hidden, outputs)
    dense = [layer for layer in model.layers if isinstance(layer, nn.Linear)]
    assert [layer.out_features for layer in dense] == [*hidden, outputs]
    assert sum(isinstance(layer, nn.ReLU) for layer in model.layers) == len(hidden)
    assert isinstance(model.layers[-1], nn.Linear)
    assert model(torch.zeros(2, inputs)).shape == (2, outputs)


def test_a_layer_of_no_width_is_refused():
    with pytest.raises(ValueError, match=r"at least 1, got \[784, 0, 10\]"):
        MLP(hidden=(0,))
