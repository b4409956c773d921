import torch

from manyhands.models import LeNet


def test_gives_ten_logits_per_digit():
    assert LeNet()(torch.zeros(3, 1, 28, 28)).shape == (3, 10)


def test_has_the_parameters_that_it_states():
    count = sum(parameter.numel() for parameter in LeNet().parameters())
    assert count == 1_111_946
    assert f"{count:,}" in LeNet.__doc__


def test_the_same_seed_makes_the_same_network():
    torch.manual_seed(3)
    first = LeNet().state_dict()
    torch.manual_seed(3)
    for name, tensor in LeNet().state_dict().items():
        assert torch.equal(tensor, first[name])
