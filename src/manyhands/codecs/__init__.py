"""Codecs: vectors of numbers as fewer bytes, for slow networks.

>>> from manyhands import codecs
>>> codecs.topk(0.05) == codecs.CATALOG.read("topk(0.05)")
True
"""

from manyhands.codecs.chain import CodecChain
from manyhands.codecs.chunked_topk import ChunkedTopK
from manyhands.codecs.codec import Codec, CodecError
from manyhands.codecs.feedback import ErrorFeedback
from manyhands.codecs.integers import Int4, Int8
from manyhands.codecs.lossless import Deflate, Exact
from manyhands.codecs.onebit import OneBit
from manyhands.codecs.precision import BFloat16, Half
from manyhands.codecs.quantised import Qsgd
from manyhands.codecs.randomk import RandomK
from manyhands.codecs.selection import Selection
from manyhands.codecs.ternary import Ternary
from manyhands.codecs.threshold import Threshold
from manyhands.codecs.topk import TopK
from manyhands.notation import Catalog

ALL: tuple[type[Codec], ...] = (
    Half,
    BFloat16,
    Int8,
    Int4,
    Qsgd,
    Ternary,
    OneBit,
    Threshold,
    TopK,
    RandomK,
    ChunkedTopK,
    Exact,
    Deflate,
    CodecChain,
)
"""All codecs, in the order in which they are listed."""

CATALOG: Catalog[Codec] = Catalog(kind="codec", classes=ALL)

# Under the names that their texts begin with, written out for editors and type checkers.
bfloat16 = BFloat16
chain = CodecChain
chunked_topk = ChunkedTopK
deflate = Deflate
exact = Exact
half = Half
int4 = Int4
int8 = Int8
onebit = OneBit
qsgd = Qsgd
randomk = RandomK
ternary = Ternary
threshold = Threshold
topk = TopK

__all__ = [
    "ALL",
    "CATALOG",
    "BFloat16",
    "ChunkedTopK",
    "Codec",
    "CodecChain",
    "CodecError",
    "Deflate",
    "ErrorFeedback",
    "Exact",
    "Half",
    "Int4",
    "Int8",
    "OneBit",
    "Qsgd",
    "RandomK",
    "Selection",
    "Ternary",
    "Threshold",
    "TopK",
    "bfloat16",
    "chain",
    "chunked_topk",
    "deflate",
    "exact",
    "half",
    "int4",
    "int8",
    "onebit",
    "qsgd",
    "randomk",
    "ternary",
    "threshold",
    "topk",
]
