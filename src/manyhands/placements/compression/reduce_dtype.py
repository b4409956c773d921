"""Codecs of FSDP2, which reduces gradients itself: a dtype of fewer bits, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.codecs import BFloat16, Half

if TYPE_CHECKING:
    from manyhands.codecs import Codec
    from manyhands.codecs.reducers import Reducer
    from manyhands.costs import TensorSize


def check_reduce_dtype(codec: Codec | Reducer | None, strategy: str) -> None:
    """Raise ValueError, naming the fix, for a codec that FSDP2 cannot reduce with."""
    if codec is None:
        return
    if not isinstance(codec, Half | BFloat16):
        raise ValueError(  # noqa: TRY004 - what a text may say wrong is a ValueError
            f"FSDP2 reduces and scatters gradients itself and takes only another dtype for it, "
            f"not {codec}: use {strategy}(codec=bfloat16()) or {strategy}(codec=half()), or "
            f"allreduce(codec={codec}) if the model fits on each worker"
        )
    if codec.feedback is True:
        raise ValueError(
            f"FSDP2 does not keep what it rounds off, so there is no error feedback: use "
            f"{strategy}(codec={codec.name}())"
        )


def reduce_dtype(codec: Codec | Reducer | None) -> str | None:
    """The name of the dtype in which FSDP2 reduces; None for the gradients' own."""
    return codec.dtype if isinstance(codec, Half | BFloat16) else None


def reduced_bytes(codec: Codec | Reducer | None, tensor: TensorSize, padded: int) -> int:
    """Bytes of a gradient in a reduction, of so many in its own dtype."""
    if isinstance(codec, Half | BFloat16):
        return codec.wire_bytes(padded // tensor.itemsize, tensor.itemsize)
    return padded
