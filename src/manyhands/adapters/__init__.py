"""Adapters to other libraries: their models as jobs, and finished runs in their form.

    adapters.transformers     models of Hugging Face transformers (extra `transformers`)
    adapters.keras            compiled models of Keras 3 on the torch backend (extra `keras`)

Nothing of them is needed to train such a model; they save lines that are easily wrong.
The libraries are imported on first use.

    >>> import manyhands as mh
    >>> collate = mh.adapters.transformers.collator(0)
    >>> collate([{"input_ids": [5, 6]}, {"input_ids": [7]}])["attention_mask"].tolist()
    [[1, 1], [1, 0]]
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from manyhands.adapters import keras, transformers

__all__ = ["keras", "transformers"]


def __getattr__(name: str) -> object:
    if name in __all__:
        return import_module(f"manyhands.adapters.{name}")
    raise AttributeError(f"module 'manyhands.adapters' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
