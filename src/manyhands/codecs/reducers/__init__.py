"""Reducers: sums of gradients over workers that take more than one payload per worker."""

from manyhands.codecs.reducers.factors import Factors
from manyhands.codecs.reducers.powersgd import PowerSGD
from manyhands.codecs.reducers.reducer import Reducer
from manyhands.codecs.reducers.sparse_sum import SparseSum
from manyhands.notation import Catalog

ALL: tuple[type[Reducer], ...] = (PowerSGD, SparseSum, Factors)
"""All reducers, in the order in which they are listed."""

CATALOG: Catalog[Reducer] = Catalog(kind="reducer", classes=ALL)

__all__ = ["ALL", "CATALOG", "Factors", "PowerSGD", "Reducer", "SparseSum"]
