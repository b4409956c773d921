"""Error feedback: what a codec did not send is added to the next vector."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.codecs.kernels.finite import not_finite

if TYPE_CHECKING:
    import torch

    from manyhands.codecs.codec import Codec


class ErrorFeedback:
    """The encoder of one stream of updates, with the residual r of a codec.

    For every update ΔW it encodes ΔW + r, of which δ is decoded by the receiver, and keeps
    r ← r + ΔW − δ: nothing is lost, it is only delayed.

    Args:
        codec: the codec. If it has no error feedback, updates are encoded alone.
    """

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self.residual: torch.Tensor | None = None
        """What was not sent so far; None before the first update, and without error feedback."""

    def encode(self, update: torch.Tensor, seed: int = 0) -> torch.Tensor:
        """The payload of an update and the residual; the update is not changed.

        An update must be finite. If its payload is not, because numbers are beyond the range of the
        codec, the receiver does not apply it, and the residual begins anew.
        """
        if not self._codec.feeds_back:
            return self._codec.encode(update, seed)
        if self.residual is None:
            self.residual = update.clone()
        else:
            self.residual.add_(update)
        payload = self._codec.encode_rest(self.residual, seed)
        if not_finite(self.residual):
            self.residual = None
        return payload

    def norm(self) -> float:
        """The norm of the residual: how much of the updates has not been sent."""
        return 0.0 if self.residual is None else float(self.residual.norm())
