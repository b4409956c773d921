"""MNIST: handwritten digits.

LeCun, Bottou, Bengio, Haffner, "Gradient-Based Learning Applied to Document Recognition", 1998.
Terms: CC BY-SA 3.0.
"""

from __future__ import annotations

import gzip
import itertools

import numpy as np

from manyhands.data.decoded import Bytes, Decoded
from manyhands.data.images import Images
from manyhands.data.originals import Original
from manyhands.data.samples import Split, check_split

_MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)


def mnist(split: Split) -> Images:
    """60,000 ("train") or 10,000 ("test") digits: float32 `[1, 28, 28]` and the class, 0 to 9.

    Pixels are normalised with the training set's mean 0.1307 and standard deviation 0.3081.

    >>> mnist("train"), len(mnist("train"))
    (mnist('train'), 60000)
    """
    check_split("mnist", split)
    count = {"train": 60_000, "test": 10_000}[split]
    decoded = Decoded(
        set="mnist",
        split=split,
        originals=ORIGINALS[split],
        decode=_decode,
        whole=tuple(itertools.chain.from_iterable(ORIGINALS.values())),
        shapes=((count, 1, 28, 28), (count,)),
    )
    return Images("mnist", split, decoded, mean=(0.1307,), std=(0.3081,))


def _decode(originals: list[bytes]) -> tuple[Bytes, ...]:
    images, labels = (gzip.decompress(original) for original in originals)
    # The idx format: a header of 4 bytes and 4 more per dimension, then the values.
    pixels = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 1, 28, 28)
    return pixels, np.frombuffer(labels, np.uint8, offset=8)


def _original(name: str, size: int, sha256: str, md5: str) -> Original:
    return Original(
        name=name,
        folders=("mnist",),
        size=size,
        sha256=sha256,
        published=("md5", md5),
        mirrors=tuple(mirror + name for mirror in _MIRRORS),
    )


ORIGINALS = {
    "train": (
        _original(
            "train-images-idx3-ubyte.gz",
            9_912_422,
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        ),
        _original(
            "train-labels-idx1-ubyte.gz",
            28_881,
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "d53e105ee54ea40749a09fcbcd1e9432",
        ),
    ),
    "test": (
        _original(
            "t10k-images-idx3-ubyte.gz",
            1_648_877,
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "9fb629c4189551a2d022fa330f9573f3",
        ),
        _original(
            "t10k-labels-idx1-ubyte.gz",
            4_542,
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
}
"""Images and labels of each split; the MD5 sums are those that torchvision records."""
