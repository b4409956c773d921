"""How frozen values are written as text, and read back: `ssp(staleness=4, codec=topk(0.01))`.

`Value` is what can be written, `Catalog` what can be read. A text is parsed by a grammar of its
own (`parse`) and can only ever construct the classes that a catalog names.
"""

from manyhands.notation.catalog import Catalog
from manyhands.notation.description import Description, FieldDescription
from manyhands.notation.error import NotationError
from manyhands.notation.grammar import parse, split
from manyhands.notation.value import Value, spelled

__all__ = [
    "Catalog",
    "Description",
    "FieldDescription",
    "NotationError",
    "Value",
    "parse",
    "spelled",
    "split",
]
