import math
import random
import time
import tracemalloc
from types import NoneType
from typing import get_args, get_origin

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.wire import Beat, Control, Roll, TraceChunk, Warn, WireError, decode, encode
from manyhands.wire.control import LIMIT

KINDS = get_args(Control)
VALUES: dict[object, st.SearchStrategy[object]] = {
    int: st.integers(-(2**63), 2**64 - 1),
    float: st.floats(allow_nan=False),
    str: st.text(max_size=40),
    bytes: st.binary(max_size=200),
    bool: st.booleans(),
    NoneType: st.none(),
}
EXAMPLES = {int: 448, float: 12.5, str: "worker 3 — größer", bytes: b"{}\n" * 20, bool: True}


def is_struct(kind: object) -> bool:
    """Whether it is a message, or a part of one with fields."""
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def values_of(kind: object) -> st.SearchStrategy[object]:
    """All values of a field's type."""
    inner = get_args(kind)
    if is_struct(kind):
        return messages(kind)
    if not inner:
        return VALUES[kind]
    if get_origin(kind) is dict:
        return st.dictionaries(*(values_of(one) for one in inner), max_size=9)
    if get_origin(kind) is not tuple:
        return st.one_of(*(values_of(one) for one in inner))
    if inner[-1] is ...:
        return st.lists(values_of(inner[0]), max_size=9).map(tuple)
    return st.tuples(*(values_of(one) for one in inner))


def example_of(kind: object) -> object:
    """A value of a field's type."""
    inner = [one for one in get_args(kind) if one is not ...]
    if is_struct(kind):
        return kind(**{one.name: example_of(one.type) for one in msgspec.structs.fields(kind)})
    if not inner:
        return EXAMPLES[kind]
    if get_origin(kind) is dict:
        return {example_of(inner[0]): example_of(inner[1])}
    if get_origin(kind) is not tuple:
        return example_of(inner[0])
    return tuple(example_of(one) for one in inner)


def messages(kind: type) -> st.SearchStrategy[Control]:
    given = {field.name: values_of(field.type) for field in msgspec.structs.fields(kind)}
    return st.builds(kind, **given)


# One of every kind, so that a kind that is added is tested at once.
SAMPLES = [example_of(kind) for kind in KINDS]


def refused(frame: bytes) -> bool:
    """Whether decode refuses a frame; if it takes it, with a message of ours."""
    try:
        message = decode(frame)
    except WireError:
        return True
    assert isinstance(message, KINDS)
    return False


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(deadline=None)
@given(data=st.data())
def test_a_message_comes_back_as_it_was_sent(kind: type, data: st.DataObject) -> None:
    message = data.draw(messages(kind))
    back = decode(encode(message))
    assert type(back) is kind
    assert back == message


def test_a_loss_that_is_not_a_number_travels_too() -> None:
    back = decode(encode(Beat(0.0, 0, 0, float("nan"), "", "")))
    assert isinstance(back, Beat)
    assert back.loss is not None
    assert math.isnan(back.loss)


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=300))
def test_random_bytes_give_a_message_or_a_wire_error(frame: bytes) -> None:
    refused(frame)


def test_20_000_damaged_frames_give_a_message_or_a_wire_error_quickly() -> None:
    source = random.Random(20_000)  # noqa: S311 - no secret
    frames = [encode(message) for message in SAMPLES]
    slowest, taken, tried = 0.0, 0, 20_000
    for number in range(tried):
        frame = bytearray(source.choice(frames))
        match number % 5:
            case 0:
                for _ in range(source.randint(1, 4)):
                    frame[source.randrange(len(frame))] = source.randrange(256)
            case 1:
                del frame[source.randrange(len(frame)) :]
            case 2:
                # Lengths that promise more than there is, in every width that msgpack has.
                head = source.choice([b"\xdf", b"\xdd", b"\xdb", b"\xc6", b"\xde", b"\xc9"])
                at = source.randrange(len(frame))
                frame[at:at] = head + source.randbytes(4)
            case 3:
                other = source.choice(frames)
                frame[source.randrange(len(frame)) :] = other[source.randrange(len(other)) :]
            case _:
                frame = bytearray(source.randbytes(source.randrange(200)))
        begun = time.perf_counter()
        taken += not refused(bytes(frame))
        slowest = max(slowest, time.perf_counter() - begun)
    assert slowest < 0.5
    assert 0 < taken < tried // 2, "some damage gives another message, most of it none"


@pytest.mark.parametrize("message", SAMPLES, ids=lambda message: type(message).__name__)
def test_a_frame_cut_anywhere_or_followed_by_anything_is_refused(message: Control) -> None:
    frame = encode(message)
    assert all(refused(frame[:end]) for end in range(len(frame)))
    assert refused(frame + b"\xc0")


@pytest.mark.parametrize("length", [2**16, 2**24, 2**32 - 1])
def test_a_promised_length_costs_no_memory_before_its_items_are_there(length: int) -> None:
    frame = encode(Roll(1, (("server-0", "a", "tcp://10.0.0.1:1"),)))
    at = frame.index(b"servers") + len(b"servers")
    tracemalloc.start()
    try:
        assert refused(frame[:at] + b"\xdd" + length.to_bytes(4, "big") + frame[at + 1 :])
        assert tracemalloc.get_traced_memory()[1] < LIMIT
    finally:
        tracemalloc.stop()


def test_text_that_is_not_utf_8_is_a_wire_error() -> None:
    frame = encode(Warn("abcd")).replace(b"abcd", b"\xff\xfe\xfd\xfc")
    with pytest.raises(WireError, match="not a control message"):
        decode(frame)


@pytest.mark.parametrize(
    "content",
    [
        None,
        [],
        {},
        {"type": "Nonsense"},
        {"type": "Warn"},
        {"type": "Warn", "words": 3},
        {"type": "Warn", "words": "x", "more": 1},
        {"type": "Goodbye", "step": "1", "samples": 1},
        {"type": "Goodbye", "step": 1.5, "samples": 1},
        {"type": "TraceChunk", "lines": "text"},
        {"type": "Roll", "epoch": 1, "servers": [["server-0", "a"]]},
        {"words": "no tag"},
    ],
    ids=str,
)
def test_what_is_none_of_our_messages_is_refused(content: object) -> None:
    with pytest.raises(WireError, match="not a control message"):
        decode(msgspec.msgpack.encode(content))


@pytest.mark.parametrize(
    "frame",
    [
        b"\x91" * (LIMIT - 1),
        b"\x81\xa1x" * (LIMIT // 3),
        b"\x82\xa1x" + b"\x91" * 900_000 + b"\xc0\xa4type\xa4Warn",
        encode(Warn("x"))[:-2] + b"\x91" * 900_000,
        encode(Roll(1, ()))[:-1] + b"\x91" * 900_000 + b"\xc0",
    ],
    ids=["lists", "maps", "before the tag", "in place of text", "in place of servers"],
)
def test_deep_nesting_is_refused_cleanly(frame: bytes) -> None:
    with pytest.raises(WireError):
        decode(frame)


def test_a_frame_over_the_limit_is_refused_before_it_is_parsed() -> None:
    whole = msgspec.msgpack.encode(Warn("x" * LIMIT))
    assert isinstance(msgspec.msgpack.decode(whole, type=Control), Warn), "it is a message of ours"
    with pytest.raises(WireError, match=f"a frame has {len(whole)} bytes, the limit is {LIMIT}"):
        decode(whole)
    begun = time.perf_counter()
    assert refused(b"\x91" * (64 * LIMIT))
    assert time.perf_counter() - begun < 0.5


def test_the_longest_message_that_may_be_sent_arrives_and_one_byte_more_does_not_leave() -> None:
    room = LIMIT - len(encode(TraceChunk(b"x" * 70_000))) + 70_000
    longest = TraceChunk(b"x" * room)
    assert len(encode(longest)) == LIMIT
    assert decode(encode(longest)) == longest
    with pytest.raises(
        WireError, match=f"a TraceChunk has {LIMIT + 1} bytes, the limit is {LIMIT}"
    ):
        encode(TraceChunk(b"x" * (room + 1)))
