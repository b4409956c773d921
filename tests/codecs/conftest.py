"""Every test with an argument `codec` runs for all codecs: that of each docstring, and variants.

Those with `feeding` run for the codecs with error feedback, those with `unbiased` for the unbiased,
those with `contracting` for codecs that contract.
"""

import re

import pytest

from manyhands.codecs import ALL, CATALOG, Codec

VARIANTS = (
    "int8(block=7)",
    "int8(feedback=true)",
    "int4(block=3)",
    "qsgd(levels=1)",
    "qsgd(levels=2, block=64)",
    "qsgd(levels=127)",
    "ternary(block=70000)",
    "onebit(block=3)",
    "threshold(tau=0.5)",
    "threshold(density=0.3)",
    "topk(0.3)",
    "topk(1.0)",
    "topk(0.1, feedback=false)",
    "randomk(0.3)",
    "randomk(0.05)",
    "chunked_topk(chunk=64, fraction=0.1, bits=4)",
    "chunked_topk(bits=1)",
    "chain(exact(), deflate())",
    "chain(int4(), deflate())",
    "chain(threshold(density=0.1), deflate())",
    "chain(randomk(0.3), int8())",
    "chain(randomk(0.3), int8(), feedback=true)",
    "chain(topk(0.3), threshold(tau=0.5))",
    "chain(randomk(0.5), chain(topk(0.2), int4()))",
)


def example(cls: type[Codec]) -> str:
    """The codec of the docstring's example."""
    found = re.search(r"^ *Example: `\w+\(codec=(.+)\)`$", cls.__doc__ or "", re.MULTILINE)
    assert found, f"{cls.__name__} has no line 'Example: `allreduce(codec=…)`'"
    return found[1]


CODECS = tuple(dict.fromkeys(CATALOG.read(text) for text in (*map(example, ALL), *VARIANTS)))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "codec" in metafunc.fixturenames:
        metafunc.parametrize("codec", CODECS, ids=str)
    if "feeding" in metafunc.fixturenames:
        with_feedback = [codec for codec in CODECS if codec.feeds_back]
        metafunc.parametrize("feeding", with_feedback, ids=str)
    if "contracting" in metafunc.fixturenames:
        shrinking = [codec for codec in CODECS if codec.contracts]
        metafunc.parametrize("contracting", shrinking, ids=str)
    if "unbiased" in metafunc.fixturenames:
        without_bias = [codec for codec in CODECS if not codec.biased and not codec.feeds_back]
        metafunc.parametrize("unbiased", without_bias, ids=str)
