"""The codecs of a server: pushes are decoded, and answers are encoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from manyhands.codecs import CodecError
from manyhands.endpoint import Push
from manyhands.protocols.compression import frames
from manyhands.protocols.compression.coding import Work
from manyhands.protocols.compression.frames import Form, Frame
from manyhands.sampling.permutation import mix

if TYPE_CHECKING:
    import torch

    from manyhands.codecs import Codec
    from manyhands.codecs.kernels.finite import NotFinite
    from manyhands.parameters import Holder
    from manyhands.protocols.actions import Answer, Call
    from manyhands.protocols.compression.coding import Coding, HasCodings

_SERVER = 5
"""Purpose for `mix`: the random rounding of a server."""


class CodedShard:
    """A server's side of the exchange with workers under codecs.

    All of it is a function of the calls received so far, so that a restarted server which reads
    them in its journal has the same references again.

    Args:
        holder: the shard.
        coding: the codecs.
        seed: the seed of random rounding.
        own: the worker in the server's own process, to which nothing is encoded; "" for none.
    """

    @classmethod
    def of(
        cls, protocol: HasCodings, number: int, workers: int, holder: Holder, seed: int
    ) -> CodedShard | None:
        """The codecs of a server of a protocol; None if it has none.

        Args:
            protocol: the protocol.
            number: the server's number.
            workers: number of workers.
            holder: its shard.
            seed: the job's seed.
        """
        coding = protocol.coding_of(number, workers)
        if coding is None:
            return None
        own = f"worker-{number}" if protocol.peer_servers else ""
        return cls(holder, coding, mix(seed, _SERVER, number), own)

    def __init__(self, holder: Holder, coding: Coding, seed: int, own: str = "") -> None:
        self._holder = holder
        self._shard = holder.shard
        self._coding = coding
        self._seed = seed
        self._own = own
        self._encoded: dict[int, tuple[torch.Tensor | None, torch.Tensor, torch.Tensor]] = {}
        """Answers with the current parameters, by the identity of the reference that they are
        differences to: that reference, the encoded frame, and the reference after it."""
        self._revision = -1
        """The revision of the shard that these answers are about."""
        self._current: torch.Tensor | None = None
        """A copy of the current parameters, if they were sent whole."""
        self.not_finite: NotFinite = ""
        """What the push that was received last has that is no finite number, as its frame says."""
        self._worked: list[Work] = []

    def take_work(self) -> list[Work]:
        """The vectors that were encoded or decoded since the last call."""
        worked, self._worked = self._worked, []
        return worked

    def _note(self, what: Literal["encode", "decode"], codec: Codec | None) -> None:
        if codec is not None:
            self._worked.append(Work(what, codec, self._shard.nbytes))

    @property
    def room(self) -> int:
        """Bytes of the largest frame."""
        return self._coding.room(self._shard)

    def received(self, call: Call, payload: torch.Tensor | None) -> torch.Tensor | None:
        """The bytes that came with a call, as if they had not been encoded."""
        self.not_finite = ""
        if self._is_own(call) or payload is None or not isinstance(call.message, Push):
            return payload
        frame = self._read(payload)
        references = self._holder.references
        references.acknowledge(call.sender, frame.reference)
        match frame.form:
            case Form.EMPTY:
                return None
            case Form.NOT_FINITE:
                self.not_finite = frame.not_finite
                return None
            case Form.CODED:
                self._note("decode", self._coding.pushes)
                push = self._decoded(call, frame)
            case _:
                push = frame.body
        if self._coding.pushed == "states" and self._coding.pushes is not None:
            references.received[call.sender] = push.clone() if push is frame.body else push
        return push

    def _decoded(self, call: Call, frame: Frame) -> torch.Tensor:
        if self._coding.pushes is None:
            raise CodecError(f"expected a whole vector from {call.sender}, got an encoded one")
        base = self._base(call, frame)
        result = self._holder.bytes.clone() if base is None else base.clone()
        vectors = frame.vectors(self._coding.pushes, self._shard)
        for flat, vector in zip(self._shard.flat_by_dtype, vectors, strict=True):
            if base is None:
                flat.view(result).copy_(vector)
            else:
                flat.view(result).add_(vector)
        frame.copy_buffers(self._shard, result)
        return result

    def _base(self, call: Call, frame: Frame) -> torch.Tensor | None:
        """The vector that a push is a difference to; None if it is none."""
        references = self._holder.references
        match self._coding.pushed:
            case "updates":
                return None
            case "replicas":
                base = references.sent[call.sender].get(frame.reference)
            case "states":
                base = references.received.get(call.sender)
        if base is None:
            raise CodecError(
                f"expected a whole vector from {call.sender}, got a difference to one that this "
                "server does not have"
            )
        return base

    def answer(self, answer: Answer, source: torch.Tensor | None) -> torch.Tensor | None:
        """The frame of an answer. It is to be made once per answer, in the order of answers.

        Args:
            answer: the answer.
            source: its payload without codecs.
        """
        call = answer.call
        if source is None or self._is_own(call):
            return source
        if answer.gathered or self._coding.shared:
            return self._whole(0, source, Form.PLAIN)
        references = self._holder.references
        references.last += 1
        base = None
        if isinstance(call.message, Push) and self._coding.answers is not None:
            if self._coding.answers.lossless:
                return self._without_loss(call, source)
            known = references.sent[call.sender]
            base = known.get(references.held.get(call.sender, 0)) if len(known) == 1 else None
        if base is None:
            references.sent[call.sender][references.last] = self._kept(source)
            return self._whole(references.last, source, Form.WHOLE)
        payload, after = self._difference(base, source)
        references.sent[call.sender][references.last] = after
        self._number(payload, references.last)
        return payload

    def _without_loss(self, call: Call, source: torch.Tensor) -> torch.Tensor:
        """A frame with encoded parameters; a reference only if pushes are differences to it."""
        references = self._holder.references
        payload, _ = self._difference(None, source)
        if self._coding.pushed == "replicas":
            references.sent[call.sender][references.last] = self._kept(source)
            self._number(payload, references.last)
        return payload

    def _read(self, payload: torch.Tensor) -> Frame:
        return frames.read(self._shard, payload)

    def _whole(self, reference: int, source: torch.Tensor, form: Form) -> torch.Tensor:
        return frames.whole(self._shard, reference, source, form)

    def _number(self, frame: torch.Tensor, reference: int) -> None:
        frames.number(frame, reference)

    def _difference(
        self, base: torch.Tensor | None, source: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A new frame with the difference of the parameters to a reference, and the next one.

        Without a reference it has the parameters themselves.

        In a round all workers have the same reference: it is encoded once.
        """
        self._begin_revision()
        known = self._encoded.get(id(base))
        if known is None:
            self._note("encode", self._coding.answers)
            known = self._encoded[id(base)] = (base, *self._encode(base, source))
        return known[1].clone(), known[2]

    def _kept(self, source: torch.Tensor) -> torch.Tensor:
        """A copy of what is sent whole; callers that receive the same parameters share it."""
        if source is not self._holder.bytes:
            return self._copy(source)
        self._begin_revision()
        if self._current is None:
            self._current = self._copy(source)
        return self._current

    def _begin_revision(self) -> None:
        """Forget what was made of earlier parameters."""
        if self._revision != self._holder.revision:
            self._encoded.clear()
            self._current = None
            self._revision = self._holder.revision
            self._holder.references.begin_revision(self._revision)

    def _copy(self, source: torch.Tensor) -> torch.Tensor:
        return source.clone()

    def _encode(
        self, base: torch.Tensor | None, source: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        codec = self._coding.answers
        assert codec is not None
        after, payloads = source.clone(), []
        for index, flat in enumerate(self._shard.flat_by_dtype):
            seed = mix(self._seed, self._holder.references.since, index)
            if base is None:
                payloads.append(codec.encode(flat.view(source), seed))
                continue
            difference = flat.view(source) - flat.view(base)
            payloads.append(codec.encode(difference, seed))
            codec.decode(payloads[-1], difference)
            flat.view(after).copy_(flat.view(base)).add_(difference)
        return frames.coded(self._shard, 0, payloads, source), after

    def _is_own(self, call: Call) -> bool:
        return bool(self._own) and call.sender.partition(".")[0] == self._own
