"""Aggregators: how a server makes one update of those of all workers.

>>> from manyhands.protocols import aggregation
>>> aggregation.CATALOG.read("trimmed(2)")
trimmed(f=2)
"""

from manyhands.notation import Catalog
from manyhands.protocols.aggregation.aggregator import Aggregator
from manyhands.protocols.aggregation.clipped import Clipped
from manyhands.protocols.aggregation.krum import Krum
from manyhands.protocols.aggregation.median import Median
from manyhands.protocols.aggregation.option import Aggregated, Combine
from manyhands.protocols.aggregation.trimmed import Trimmed

ALL: tuple[type[Aggregator], ...] = (Median, Trimmed, Krum, Clipped)
"""All aggregators but the mean, in the order in which they are listed."""

CATALOG: Catalog[Aggregator] = Catalog(kind="aggregator", classes=ALL)

# Under the names that their texts begin with, written out for editors and type checkers.
clipped = Clipped
krum = Krum
median = Median
trimmed = Trimmed

__all__ = [
    "ALL",
    "CATALOG",
    "Aggregated",
    "Aggregator",
    "Clipped",
    "Combine",
    "Krum",
    "Median",
    "Trimmed",
    "clipped",
    "krum",
    "median",
    "trimmed",
]
