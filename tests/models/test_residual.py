import pytest
import torch
from torch import nn

from manyhands.models import ResidualNetwork


@pytest.mark.parametrize(("depth", "parameters"), [(8, 75_290), (20, 269_722)])
def test_has_the_layers_and_parameters_that_it_states(depth, parameters):
    model = ResidualNetwork(depth)
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    assert len(layers) == depth
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert f"{parameters:,}" in ResidualNetwork.__doc__


def test_gives_logits_and_trains_every_parameter():
    model = ResidualNetwork(classes=7, width=4)
    logits = model(torch.randn(5, 3, 32, 32))
    assert logits.shape == (5, 7)
    logits.square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())


def test_stages_halve_the_map_and_double_the_channels():
    model = ResidualNetwork(width=4).eval()
    maps, shapes = model.stem(torch.zeros(1, 3, 32, 32)), []
    for stage in model.stages:
        maps = stage(maps)
        shapes.append(tuple(maps.shape[1:]))
    assert shapes == [(4, 32, 32), (8, 16, 16), (16, 8, 8)]


def test_a_block_whose_residual_is_zero_passes_its_input_on():
    model = ResidualNetwork(width=4).eval()
    block = model.stages[1][0]
    nn.init.zeros_(block.residual[-1].weight)
    inputs = torch.rand(2, 4, 32, 32)
    outputs = block(inputs)
    assert torch.equal(outputs[:, :4], inputs[:, :, ::2, ::2])
    assert outputs[:, 4:].count_nonzero() == 0


@pytest.mark.parametrize("depth", [0, 2, 9, 18])
def test_other_depths_are_refused(depth):
    with pytest.raises(ValueError, match=f"depth must be 6n \\+ 2 .* got {depth}"):
        ResidualNetwork(depth)
