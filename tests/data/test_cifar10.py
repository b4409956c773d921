import pytest
import torch

from manyhands.data import cifar10


@pytest.fixture
def cifar(monkeypatch, cifar_originals, session_cache):
    monkeypatch.setenv("MANYHANDS_DATA", str(cifar_originals))
    monkeypatch.setenv("MANYHANDS_CACHE", str(session_cache))
    return cifar_originals


@pytest.mark.parametrize(
    ("split", "labels", "each"),
    [
        ("train", [6, 9, 9, 4, 1, 1, 2, 7, 8, 3], 5_000),
        ("test", [3, 8, 8, 0, 6, 6, 1, 6, 3, 1], 1_000),
    ],
)
def test_the_photographs_are_the_real_ones(cifar, split, labels, each):
    samples = cifar10(split)
    inputs, targets = samples.take(torch.arange(100))
    assert len(samples) == 10 * each
    assert inputs.shape == (100, 3, 32, 32)
    assert inputs.dtype == torch.float32
    assert targets[:10].tolist() == labels
    classes = torch.cat([samples.take(part)[1] for part in torch.arange(len(samples)).split(5_000)])
    assert torch.bincount(classes).tolist() == [each] * 10


def test_training_channels_are_normalised(cifar):
    inputs, _ = cifar10("train").take(torch.arange(0, 50_000, 5))
    assert inputs.mean(dim=(0, 2, 3)).abs().max() < 0.02
    assert (inputs.std(dim=(0, 2, 3)) - 1).abs().max() < 0.02


def test_pixels_are_those_of_the_original_file(cifar):
    place = next(path for path in cifar.glob("cifar*/test_batch.bin"))
    record = place.read_bytes()[7 * 3073 : 8 * 3073]
    image, label = cifar10("test")[7]
    assert label == record[0]
    red_corner, blue_end = record[1] / 255, record[-1] / 255
    assert image[0, 0, 0].item() == pytest.approx((red_corner - 0.4914) / 0.2470, abs=1e-5)
    assert image[2, 31, 31].item() == pytest.approx((blue_end - 0.4465) / 0.2616, abs=1e-5)
