"""Public datasets for examples, tests and benchmarks.

Constructing a dataset is free: `mnist("train")` reads no file. The original files are found,
verified and decoded by `prepare()` or on first use, once per host. Every process then maps the same
decoded files, so all workers on a host share one copy in memory.

    >>> len(mnist("train")), len(cifar10("test"))
    (60000, 10000)
"""

from manyhands.data.cifar10 import cifar10
from manyhands.data.mnist import mnist
from manyhands.data.samples import Samples
from manyhands.data.tinyshakespeare import tinyshakespeare

__all__ = ["Samples", "cifar10", "mnist", "tinyshakespeare"]
