"""Text notation of frozen values, such as `ssp(staleness=4, codec=topk(0.01))`.

A `Value` can be written as text, and a `Catalog` reads it. Text is parsed by its own grammar
(`parse`) and can only construct the classes that a catalog names.
"""

from manyhands.notation.catalog import Catalog
from manyhands.notation.description import Description, FieldDescription
from manyhands.notation.error import NotationError
from manyhands.notation.grammar import parse, split
from manyhands.notation.sweeps import Alternative, alternatives, has_sweep
from manyhands.notation.value import Value, spelled

__all__ = [
    "Alternative",
    "Catalog",
    "Description",
    "FieldDescription",
    "NotationError",
    "Value",
    "alternatives",
    "has_sweep",
    "parse",
    "spelled",
    "split",
]
