"""Base class of reducers."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass
from typing import ClassVar

from manyhands.notation import Value


@dataclass(frozen=True, repr=False)
class Reducer(Value, ABC):
    """A scheme by which workers average gradients together.

    A codec turns one vector into one payload, for any receiver. A reducer needs several
    exchanges, of which each depends on the sum of the one before, or more than the gradient: the
    activations. It is a value without state; `allreduce` executes it.
    """

    feeds_back: ClassVar[bool]
    """Whether a worker keeps what was not sent and adds it to its next gradient."""
