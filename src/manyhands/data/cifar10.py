"""CIFAR-10: small photographs of ten kinds of things.

Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009. No licence is published.
"""

from __future__ import annotations

import itertools

import numpy as np

from manyhands.data.decoded import Bytes, Decoded
from manyhands.data.images import Images
from manyhands.data.originals import Original
from manyhands.data.samples import Split, check_split


def cifar10(split: Split) -> Images:
    """50,000 ("train") or 10,000 ("test") photographs: float32 `[3, 32, 32]` and the class, 0 to 9.

    The classes are airplane, automobile, bird, cat, deer, dog, frog, horse, ship, truck. Pixels are
    normalised per channel with the training set's mean and standard deviation; there is no
    augmentation.

    >>> cifar10("test"), len(cifar10("test"))
    (cifar10('test'), 10000)
    """
    check_split("cifar10", split)
    count = {"train": 50_000, "test": 10_000}[split]
    decoded = Decoded(
        set="cifar10",
        split=split,
        originals=ORIGINALS[split],
        decode=_decode,
        whole=tuple(itertools.chain.from_iterable(ORIGINALS.values())),
        shapes=((count, 3, 32, 32), (count,)),
    )
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    return Images("cifar10", split, decoded, mean=mean, std=std)


def _decode(originals: list[bytes]) -> tuple[Bytes, ...]:
    # A record is a class, then the red, green and blue planes of a photograph.
    records = np.frombuffer(b"".join(originals), np.uint8).reshape(-1, 1 + 3 * 32 * 32)
    return records[:, 1:].reshape(-1, 3, 32, 32), np.ascontiguousarray(records[:, 0])


_ARCHIVE = Original(
    name="cifar-10-binary.tar.gz",
    folders=("cifar10", "."),
    size=170_052_171,
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    published=("md5", "c32a1d4ab5d03f1284b67883e8d87530"),
    mirrors=("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
)


def _original(name: str, sha256: str, sha1: str) -> Original:
    return Original(
        name=name,
        folders=("cifar10", "cifar-10-batches-bin", "cifar10/cifar-10-batches-bin"),
        size=30_730_000,
        sha256=sha256,
        published=("sha1", sha1),
        archive=_ARCHIVE,
    )


ORIGINALS = {
    "train": (
        _original(
            "data_batch_1.bin",
            "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
        ),
        _original(
            "data_batch_2.bin",
            "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
        ),
        _original(
            "data_batch_3.bin",
            "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
        ),
        _original(
            "data_batch_4.bin",
            "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            "aab85764eb3584312d3c7f65fd2fd016e36a258e",
        ),
        _original(
            "data_batch_5.bin",
            "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            "26e2849e66a845b7f1e4614ae70f4889ae604628",
        ),
    ),
    "test": (
        _original(
            "test_batch.bin",
            "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
            "67eb016db431130d61cd03c7ad570b013799c88c",
        ),
    ),
}
"""The binary batches of each split; the SHA-1 sums are those of the official archive's files."""
