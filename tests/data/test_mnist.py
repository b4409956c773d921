import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from manyhands.data import mnist


@pytest.mark.parametrize(
    ("split", "labels", "counts"),
    [
        (
            "train",
            [5, 0, 4, 1, 9, 2, 1, 3, 1, 4],
            [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
        ),
        (
            "test",
            [7, 2, 1, 0, 4, 1, 4, 9, 5, 9],
            [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
        ),
    ],
)
def test_the_digits_are_the_real_ones(real, split, labels, counts):
    samples = mnist(split)
    inputs, targets = samples.take(torch.arange(len(samples)))
    assert inputs.shape == (sum(counts), 1, 28, 28)
    assert inputs.dtype == torch.float32
    assert targets[:10].tolist() == labels
    assert torch.bincount(targets).tolist() == counts


def test_training_pixels_are_normalised(real):
    inputs, _ = mnist("train").take(torch.arange(60_000))
    assert abs(inputs.mean().item()) < 1e-3
    assert abs(inputs.std().item() - 1) < 1e-3


def test_pixels_are_those_of_the_original_file(real):
    import gzip

    original = gzip.decompress((real / "mnist" / "t10k-images-idx3-ubyte.gz").read_bytes())
    pixels = np.frombuffer(original, np.uint8)[16:].reshape(-1, 28, 28)
    image, _ = mnist("test")[123]
    expected = (pixels[123] / 255 - 0.1307) / 0.3081
    np.testing.assert_allclose(image[0].numpy(), expected, atol=1e-6)


def test_is_downloaded_verified_and_decoded_where_there_is_a_network(
    monkeypatch, originals, cache, site
):
    # The package exports the function under the module's name, hence sys.modules.
    module = sys.modules["manyhands.data.mnist"]
    near = {
        split: tuple(replace(file, mirrors=(site.url(file.name),)) for file in files)
        for split, files in module.ORIGINALS.items()
    }
    monkeypatch.setattr(module, "ORIGINALS", near)
    for file in near["test"]:
        site.files[file.name] = (originals / "mnist" / file.name).read_bytes()
    samples = mnist("test")
    samples.prepare()
    samples.prepare()
    assert site.requests == [file.name for file in near["test"]]
    assert samples[0][1] == 7


def test_says_what_to_do_where_there_is_none(monkeypatch, cache, nobody):
    module = sys.modules["manyhands.data.mnist"]
    far = {
        split: tuple(replace(file, mirrors=(f"{nobody}/{file.name}",)) for file in files)
        for split, files in module.ORIGINALS.items()
    }
    monkeypatch.setattr(module, "ORIGINALS", far)
    with pytest.raises(FileNotFoundError) as caught:
        mnist("train").prepare()
    assert (
        "copy train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz, "
        "t10k-labels-idx1-ubyte.gz to a folder 'mnist' and set MANYHANDS_DATA" in str(caught.value)
    )


def test_the_official_addresses_are_secure():
    module = sys.modules["manyhands.data.mnist"]
    urls = [url for files in module.ORIGINALS.values() for file in files for url in file.mirrors]
    assert len(urls) == 8
    assert all(url.startswith("https://") for url in urls)
