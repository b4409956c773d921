"""Which codec is used in which direction, and for what kind of vectors."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Protocol, TypeAlias

from manyhands.codecs import Codec, Int8
from manyhands.notation import Value

if TYPE_CHECKING:
    from manyhands.parameters import Shard

Stream: TypeAlias = Literal["updates", "replicas", "states"]
"""What workers push: updates, which servers add up; replicas that they have trained from the last
answer, as in averaging; or replicas that develop on their own, as in elastic averaging."""


class Work(NamedTuple):
    """A vector that a server encoded or decoded."""

    what: Literal["encode", "decode"]
    codec: Codec
    nbytes: int
    """Of the vector."""


@dataclass(frozen=True)
class Coding:
    """The codecs of one server.

    Updates are encoded as they are, with error feedback. Replicas are encoded as differences to the
    last answer, with error feedback: what was not sent is added to the next difference. States are
    encoded as differences to what the server received last, so that whatever was not sent is a part
    of the next difference. Parameters in answers are encoded in the same way, as differences to
    what the worker has received.
    """

    pushes: Codec | None
    """The codec of pushes; None sends them whole."""
    answers: Codec | None
    """The codec of the answers to pushes; None sends them whole."""
    stream: Stream
    shared: bool = False
    """Whether a worker sends the same pushes to all servers: those of one number are encoded once,
    and the worker has one residual."""

    @property
    def pushed(self) -> Stream:
        """How pushes are encoded: as they are if nothing is lost, so that all bits are kept."""
        return "updates" if self.pushes is not None and self.pushes.lossless else self.stream

    def room(self, shard: Shard) -> int:
        """Bytes of the largest frame, of a push or of an answer."""
        sizes = [self._frame(shard, codec) for codec in (None, self.pushes, self.answers)]
        return max(sizes)

    def push_bytes(self, shard: Shard) -> int:
        """Bytes of a push, or their upper bound if its codec has no fixed size."""
        return self._frame(shard, self.pushes)

    def answer_bytes(self, shard: Shard) -> int:
        """Bytes of the answer to a push, or their upper bound if its codec has no fixed size."""
        return self._frame(shard, self.answers)

    def _frame(self, shard: Shard, codec: Codec | None) -> int:
        if codec is None:
            return head_bytes(shard) + shard.nbytes
        flats = shard.flat_by_dtype
        coded = sum(codec.wire_bytes(flat.stop, flat.dtype.itemsize) for flat in flats)
        return head_bytes(shard) + coded + sum(buffer.nbytes for buffer in shard.buffers)


HEAD = 16
"""Bytes of the head of a frame, for parameters of one dtype."""


class HasCodings(Protocol):
    """A protocol, as far as its codecs are concerned."""

    peer_servers: ClassVar[bool]

    def count_servers(self, workers: int) -> int:
        """Number of servers."""

    def coding_of(self, server: int, workers: int) -> Coding | None:
        """The codecs of a server."""


def head_bytes(shard: Shard) -> int:
    """Bytes of a frame before its body: a reference, a form, and one length per dtype.

    A multiple of 16, so that numbers in the body are aligned.
    """
    return -(-(12 + 4 * len(shard.flat_by_dtype)) // 16) * 16


@dataclass(frozen=True, repr=False)
class Compressed(Value):
    """The fields of protocols that can send fewer bytes."""

    codec: Codec | None = field(default=None, kw_only=True)
    """How pushes are encoded, such as topk(0.01); none sends whole vectors."""
    answer_codec: Codec | Literal["same"] | None = field(default="same", kw_only=True)
    """How the answers to pushes are encoded: the same codec, another one, or none. Servers then
    keep a copy of what each worker has received. Where the error of the same codec may be larger
    than what is sent (qsgd, ternary), answers have int8()."""

    def exchanged(self, size: int, servers: int) -> tuple[float, float]:
        """Bytes of a push to all servers and of their answers, of `size` bytes without codecs.

        With codecs, the parameters are taken to be float32 and to have no buffers; a codec without
        a fixed size counts with its upper bound.
        """
        coding = self.coding("updates")
        if coding is None:
            return size, size
        part = size / servers
        pushed, answered = (
            servers * (HEAD + (part if codec is None else codec.wire_bytes(round(part / 4))))
            for codec in (coding.pushes, coding.answers)
        )
        return pushed, answered

    def coding(self, stream: Stream) -> Coding | None:
        """The codecs of a server; None if nothing is encoded."""
        pushes, answers = self.codec, self.answer_codec
        if isinstance(answers, str):
            answers = None if pushes is None else for_differences(pushes)
        elif answers is not None and not answers.contracts:
            raise ValueError(_grows("answers are", answers))
        if pushes is None and answers is None:
            return None
        if stream == "states" and pushes is not None and not pushes.contracts:
            raise ValueError(_grows("replicas are", pushes))
        return Coding(pushes, answers, stream)


def for_differences(codec: Codec) -> Codec:
    """The codec for vectors that contain what was not sent before.

    It is the same one, or with error feedback if it contracts then, or else int8().

    >>> from manyhands.codecs import CATALOG
    >>> [str(for_differences(CATALOG.read(one))) for one in ("topk()", "randomk()", "ternary()")]
    ['topk()', 'randomk(feedback=true)', 'int8()']
    """
    fed = codec if codec.contracts else replace(codec, feedback=True)
    return fed if fed.contracts else Int8()


def _grows(what: str, codec: Codec) -> str:
    return (
        f"{what} encoded as differences to what the receiver has, and the error of {codec} may be "
        "larger than a difference, so that it would grow: use int8(), int4(), or a codec with "
        "error feedback"
    )
