import pytest
import torch

from manyhands.models import ResNet50V2, ResNet101V2, ResNet152V2


def count(model: torch.nn.Module) -> int:
    """Parameters and the statistics of batch norm, as Keras counts them."""
    statistics = [one for one in model.buffers() if one.is_floating_point()]
    return sum(one.numel() for one in (*model.parameters(), *statistics))


@pytest.mark.parametrize(
    ("network", "published"),
    [(ResNet50V2, 25_613_800), (ResNet101V2, 44_675_560), (ResNet152V2, 60_380_648)],
)
def test_has_the_parameters_that_keras_publishes(network, published):
    with torch.device("meta"):
        assert count(network(classes=1000)) == published
    assert f"{published:,}" in network.__doc__


@pytest.mark.parametrize("size", [32, 128])
def test_takes_images_of_several_sizes(size):
    assert ResNet50V2(classes=10)(torch.zeros(2, 3, size, size)).shape == (2, 10)


def test_stages_shrink_the_image_as_in_keras():
    model = ResNet50V2()
    shapes = {}
    for name, module in model.named_children():
        module.register_forward_hook(
            lambda _, __, output, name=name: shapes.update({name: tuple(output.shape[1:])})
        )
    with torch.no_grad():
        model(torch.zeros(1, 3, 224, 224))
    # Keras' summary: the last block of stages 1 to 3 halves the image.
    assert shapes["stem"] == (64, 56, 56)
    assert shapes["stage1_block2"] == (256, 56, 56)
    assert shapes["stage1_block3"] == (256, 28, 28)
    assert shapes["stage2_block4"] == (512, 14, 14)
    assert shapes["stage3_block6"] == (1024, 7, 7)
    assert shapes["stage4_block3"] == (2048, 7, 7)
