"""Codecs of a time-only run: frames have a size, a form and a reference, and no content.

Frames of codecs whose size depends on the numbers have the largest size that is possible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from manyhands.protocols.compression.coding import head_bytes
from manyhands.protocols.compression.frames import Form
from manyhands.protocols.compression.shard import CodedShard
from manyhands.protocols.compression.worker import CodedEndpoint
from manyhands.virtual.worker.sizes import Size, size

if TYPE_CHECKING:
    import torch

    from manyhands.protocols import Call
    from manyhands.protocols.compression.connection import Connection
    from manyhands.protocols.compression.frames import Frame


class SizedFrame(Size):
    """A frame without content."""

    __slots__ = ("body", "form", "reference")

    def __init__(self, nbytes: int, reference: int, form: Form, body: torch.Tensor) -> None:
        super().__init__(nbytes)
        self.reference = reference
        self.form = form
        self.body = body
        """What is decoded."""

    def clone(self) -> SizedFrame:
        """Another frame, whose reference can be changed."""
        return SizedFrame(self.nbytes, self.reference, self.form, self.body)


class SizedRoom(Size):
    """A buffer for a frame."""

    __slots__ = ("frame",)

    def __init__(self, nbytes: int) -> None:
        super().__init__(nbytes)
        self.frame: SizedFrame | None = None

    def __getitem__(self, where: slice) -> SizedRoom:
        return self

    def copy_(self, other: Size) -> Size:
        """Keep the frame that is copied here."""
        self.frame = other if isinstance(other, SizedFrame) else None
        return self


def _frame(nbytes: int, reference: int, form: Form, body: torch.Tensor) -> torch.Tensor:
    return cast("torch.Tensor", SizedFrame(nbytes, reference, form, body))


class SizedCodedEndpoint(CodedEndpoint):
    """A worker's endpoint under codecs, for sizes."""

    def residuals(self) -> float:
        """There are no numbers."""
        return 0.0

    def _room(self, there: Connection) -> torch.Tensor:
        return cast("torch.Tensor", SizedRoom(there.coding.room(there.shard)))

    def _encode(self, there: Connection, to: str, payload: torch.Tensor | None) -> torch.Tensor:  # noqa: ARG002 - the contract
        shard, coding = there.shard, there.coding
        head = head_bytes(shard)
        if payload is None:
            return _frame(head, there.reference, Form.EMPTY, size(0))
        base = {"updates": None, "replicas": there.answered, "states": there.sent}[coding.pushed]
        if coding.pushes is None or (base is None and coding.pushed != "updates"):
            if coding.pushed == "states" and coding.pushes is not None:
                there.sent = payload
            return _frame(head + payload.nbytes, there.reference, Form.WHOLE, payload)
        if self._effort is not None:
            self._effort.encode(coding.pushes, shard.nbytes)
        return _frame(coding.push_bytes(shard), there.reference, Form.CODED, payload)

    def _decode(self, there: Connection, room: torch.Tensor, into: torch.Tensor) -> bool:
        buffer = cast("SizedRoom", room)
        frame, buffer.frame = buffer.frame, None
        if frame is None or frame.form is Form.EMPTY:
            return False
        there.came = into
        if frame.form is not Form.PLAIN:
            there.reference, there.answered = frame.reference, into
        return frame.form is Form.CODED


class SizedCodedShard(CodedShard):
    """A server's codecs, for sizes."""

    def _read(self, payload: torch.Tensor) -> Frame:
        return cast("Frame", payload)

    def _decoded(self, call: Call, frame: Frame) -> torch.Tensor:
        self._base(call, frame)
        return frame.body

    def _whole(self, reference: int, source: torch.Tensor, form: Form) -> torch.Tensor:
        return _frame(head_bytes(self._shard) + source.nbytes, reference, form, source)

    def _copy(self, source: torch.Tensor) -> torch.Tensor:
        return size(source.nbytes)

    def _encode(
        self, base: torch.Tensor | None, source: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        after = source if base is None else size(source.nbytes)  # a reference of its own
        return _frame(self._coding.answer_bytes(self._shard), 0, Form.CODED, source), after

    def _number(self, frame: torch.Tensor, reference: int) -> None:
        cast("SizedFrame", frame).reference = reference
