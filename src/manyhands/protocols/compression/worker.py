"""A worker's endpoint under codecs: pushes are encoded, and answers are decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from manyhands.codecs import CodecError
from manyhands.endpoint import MembershipChanged, Push
from manyhands.parameters import not_finite_in
from manyhands.protocols.compression import frames
from manyhands.protocols.compression.connection import SharedPushes, connect
from manyhands.protocols.compression.frames import Form
from manyhands.sampling.permutation import mix

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from manyhands.codecs import Codec
    from manyhands.endpoint import Endpoint, Said
    from manyhands.parameters import Shard
    from manyhands.protocols.compression.coding import Coding
    from manyhands.protocols.compression.connection import Connection


class Effort(Protocol):
    """Lets encoding and decoding take time on a virtual clock, where they take none."""

    def encode(self, codec: Codec, nbytes: int) -> None:
        """A vector of this size is being encoded; what is posted next is sent after that."""

    async def settle(self) -> None:
        """Wait until everything is encoded."""

    async def decode(self, codec: Codec, nbytes: int) -> None:
        """Decode a vector of this size."""


class CodedEndpoint:
    """Encodes what a protocol posts and decodes what it receives, around another endpoint.

    Args:
        inner: the endpoint that sends.
        shard: the shard of a server, by its name.
        coding: the codecs of a server, by its name; None for a server without any.
        seed: the seed of this worker's random rounding.
        note: called after encoding or decoding, with the clock's time before it.
        effort: makes encoding and decoding take virtual time.
    """

    def __init__(
        self,
        inner: Endpoint,
        shard: Callable[[str], Shard],
        coding: Callable[[str], Coding | None],
        seed: int,
        note: Callable[[float], None] = lambda _: None,
        effort: Effort | None = None,
    ) -> None:
        self.name, self.rng = inner.name, inner.rng
        self._inner = inner
        self._shard = shard
        self._coding = coding
        self._seed = seed
        self._note = note
        self._effort = effort
        self._connections: dict[str, Connection | None] = {}
        self._shared = SharedPushes()

    def clock(self) -> float:
        """As the endpoint that sends."""
        return self._inner.clock()

    def reaches(self, name: str) -> bool:
        """As the endpoint that sends."""
        return self._inner.reaches(name)

    def post(
        self,
        to: str,
        message: Said,
        payload: torch.Tensor | None = None,
        into: torch.Tensor | None = None,
    ) -> None:
        """Send, with the payload encoded if it is a push."""
        there = self._connection(to)
        if there is None:
            self._inner.post(to, message, payload, into)
            return
        if isinstance(message, Push):
            begun = self.clock()
            payload = self._frame(there, to, message, payload)
            self._note(begun)
        room = expected = None
        if into is not None:
            room = there.spare.pop() if there.spare else self._room(there)
            expected = (room, into)
        there.waiting.append(expected)
        self._inner.post(to, message, payload, room)

    async def receive(self, sender: str, timeout: float | None = None) -> Said:
        """Wait for an answer, and decode it into the tensor that was given with the call."""
        there = self._connection(sender)
        if self._effort is not None:
            await self._effort.settle()
        try:
            said = await self._inner.receive(sender, timeout)
        except MembershipChanged:
            if there is not None:
                there.waiting.popleft()
                self.lose(sender)
            raise
        if there is not None:
            expected, there.came = there.waiting.popleft(), None
            if expected is not None:
                begun = self.clock()
                coded = self._decode(there, *expected)
                self._note(begun)
                if coded and self._effort is not None and (codec := there.coding.answers):
                    await self._effort.decode(codec, there.shard.nbytes)
                there.spare.append(expected[0])
        return said

    def lose(self, name: str) -> None:
        """Handle the loss of a server: a successor has nothing of what it sent and received."""
        there = self._connections.get(name)
        if there is not None:
            there.reference, there.answered, there.sent = 0, None, None

    def residuals(self) -> float:
        """The norm of everything that was not sent so far."""
        kept = [one for one in self._connections.values() if one is not None]
        # Several connections may share a residual.
        parts = {id(part): part for one in kept for part in one.feedback}
        return float(sum(part.norm() ** 2 for part in parts.values()) ** 0.5)

    def unsent(self) -> dict[str, torch.Tensor]:
        """What was not sent so far, by server and number."""
        return {
            f"{name}/{index}": part.residual
            for name, there in self._connections.items()
            if there is not None
            for index, part in enumerate(there.feedback)
            if part.residual is not None
        }

    def carry(self, unsent: Mapping[str, torch.Tensor]) -> None:
        """Send later what `unsent` returned."""
        for key, residual in unsent.items():
            name, _, index = key.rpartition("/")
            if (there := self._connection(name)) is not None:
                there.feedback[int(index)].residual = residual

    def _connection(self, name: str) -> Connection | None:
        if name not in self._connections:
            coding = self._coding(name)
            there = None
            if coding is not None:
                there = connect(self._shard(name), coding, self._shared)
            self._connections[name] = there
        return self._connections[name]

    def _room(self, there: Connection) -> torch.Tensor:
        """A buffer for the frame of an answer."""
        return torch.zeros(there.coding.room(there.shard), dtype=torch.uint8)

    def _frame(
        self, there: Connection, to: str, message: Push, payload: torch.Tensor | None
    ) -> torch.Tensor:
        """The frame of a push; that of another server, if all receive the same."""
        if not there.coding.shared:
            return self._encode(there, to, payload)
        frame = self._shared.frame(message.number)
        if frame is None:
            frame = self._encode(there, to, payload)
            self._shared.last = (message.number, frame)
        return frame

    def _encode(self, there: Connection, to: str, payload: torch.Tensor | None) -> torch.Tensor:
        """The frame of a push."""
        there.pushes += 1
        shard, coding = there.shard, there.coding
        if payload is None:
            return frames.whole(shard, there.reference, None, Form.EMPTY)
        if coding.pushes is not None and (found := not_finite_in(shard, payload)):
            # A codec might make finite numbers of it, and the residual would keep it.
            return frames.refused(shard, there.reference, found)
        base = {"updates": None, "replicas": there.answered, "states": there.sent}[coding.pushed]
        if coding.pushes is None or (base is None and coding.pushed != "updates"):
            if coding.pushed == "states" and coding.pushes is not None:
                there.sent = payload.clone()
            return frames.whole(shard, there.reference, payload, Form.WHOLE)
        if self._effort is not None:
            self._effort.encode(coding.pushes, shard.nbytes)
        payloads = []
        for index, flat in enumerate(shard.flat_by_dtype):
            vector, seed = flat.view(payload), mix(self._seed, number_of(to), there.pushes, index)
            if coding.pushed == "updates":
                payloads.append(there.feedback[index].encode(vector, seed))
            elif coding.pushed == "replicas":
                assert base is not None
                payloads.append(there.feedback[index].encode(vector - flat.view(base), seed))
            else:
                assert base is not None
                difference = vector - flat.view(base)
                encoded = coding.pushes.encode(difference, seed)
                coding.pushes.decode(encoded, difference)
                flat.view(base).add_(difference)
                payloads.append(encoded)
        return frames.coded(shard, there.reference, payloads, payload)

    def _decode(self, there: Connection, room: torch.Tensor, into: torch.Tensor) -> bool:
        """Decode the frame in `room`, if an answer came with one; return whether it was encoded."""
        shard, frame = there.shard, frames.read(there.shard, room)
        frames.clear(room, shard)
        if frame.form is Form.EMPTY:
            return False
        there.came = into
        match frame.form:
            case Form.WHOLE | Form.PLAIN:
                into.copy_(frame.body)
            case Form.CODED:
                base, codec = there.answered, there.coding.answers
                if codec is None or (base is None and not codec.lossless):
                    raise CodecError("expected whole parameters, got a difference to none")
                vectors = frame.vectors(codec, shard)
                for flat, vector in zip(shard.flat_by_dtype, vectors, strict=True):
                    if codec.lossless or base is None:
                        flat.view(into).copy_(vector)
                    else:
                        flat.view(into).copy_(flat.view(base)).add_(vector)
                frame.copy_buffers(shard, into)
        if frame.form is not Form.PLAIN:
            there.reference = frame.reference
            if there.answered is None:
                there.answered = into.clone()
            else:
                there.answered.copy_(into)
        return frame.form is Form.CODED


def number_of(name: str) -> int:
    """The number of a server, in its name."""
    return int(name.rpartition("-")[2])
