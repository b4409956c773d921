"""Real sets of samples for examples, tests and benchmarks.

A set costs nothing to name: `mnist("train")` reads no file. Its originals are found, verified and
decoded on `prepare()` or on first use, once per host, and every process then maps the same decoded
files, so any number of workers on a host share one copy in memory.

    >>> len(mnist("train")), len(cifar10("test"))
    (60000, 10000)
"""

from manyhands.data.cifar10 import cifar10
from manyhands.data.mnist import mnist
from manyhands.data.samples import Samples
from manyhands.data.tinyshakespeare import tinyshakespeare

__all__ = ["Samples", "cifar10", "mnist", "tinyshakespeare"]
