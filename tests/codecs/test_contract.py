"""What holds for every codec of the list."""

import subprocess
import sys

import pytest
import torch

from manyhands.codecs import ALL, CATALOG, Codec, ErrorFeedback, Selection
from manyhands.codecs.chain import CodecChain

SIZES = (0, 1, 2, 7, 100, 4097, 100_000)
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def numbers(size: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    made = torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return made.to(dtype)


def decoded(codec: Codec, payload: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    into = torch.full_like(like, 7.0)
    codec.decode(payload, into)
    return into


def check(codec: Codec, vector: torch.Tensor) -> torch.Tensor:
    """Encode, decode, and what is left; the decoded vector."""
    given = vector.clone()
    payload = codec.encode(vector, seed=3)
    assert torch.equal(vector, given), "the vector was changed"
    assert payload.dtype == torch.uint8
    assert payload.shape == (payload.numel(),)
    most = codec.wire_bytes(vector.numel(), vector.itemsize)
    assert payload.numel() == most if codec.fixed_size else payload.numel() <= most
    assert torch.equal(payload, codec.encode(vector, seed=3)), "not a function of the seed"

    received = decoded(codec, payload, vector)
    rest = vector.clone()
    assert torch.equal(codec.encode_rest(rest, seed=3), payload)
    assert torch.equal(rest, vector - received), "the residual is not vector − decoded"
    if codec.lossless:
        assert torch.equal(received.view(torch.uint8), vector.view(torch.uint8))
        assert not rest.any()
    if isinstance(codec, Selection) and codec.feeds_back:
        assert torch.equal(received + rest, vector)
    return received


def test_every_class_is_listed_by_its_name() -> None:
    assert len({cls.name for cls in ALL}) == len(ALL)
    assert CATALOG.names() == tuple(cls.name for cls in ALL)


def test_text_round_trip(codec: Codec) -> None:
    again = CATALOG.read(str(codec))
    assert again == codec
    assert hash(again) == hash(codec)
    assert (again.biased, again.lossless, again.fixed_size, again.feeds_back) == (
        codec.biased,
        codec.lossless,
        codec.fixed_size,
        codec.feeds_back,
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sizes_and_what_is_left(codec: Codec, dtype: torch.dtype) -> None:
    for size in SIZES if dtype in {torch.float32, torch.bfloat16} else SIZES[:-1]:
        check(codec, numbers(size, dtype))


def test_vectors_of_hard_numbers(codec: Codec) -> None:
    zeros = torch.zeros(5000)
    assert torch.equal(check(codec, zeros), zeros)
    for value in (1.0, -0.1, 1e-3):
        constant = torch.full((5000,), value)
        received = check(codec, constant)
        assert received.isfinite().all()
    outlier = numbers(5000) * 1e-3
    outlier[1234] = -60000.0
    assert check(codec, outlier).isfinite().all()
    sparse = torch.zeros(5000)
    sparse[[0, 4999]] = torch.tensor([3.0, -2.0])
    check(codec, sparse)
    for scale in (1e-44, 1e-38, 1e-30, 1e-4, 1e4):
        assert check(codec, numbers(3000) * scale).isfinite().all()


def test_payloads_and_vectors_at_any_address(codec: Codec) -> None:
    for dtype in DTYPES:
        room = numbers(1001, dtype)
        vector = room[1:]
        payload = codec.encode(vector, seed=1)
        expected = decoded(codec, payload, vector)
        assert torch.equal(payload, codec.encode(vector.clone(), seed=1))
        for shift in (1, 2, 3, 5):
            moved = torch.empty(payload.numel() + shift, dtype=torch.uint8)[shift:]
            moved.copy_(payload)
            into = torch.empty(1001, dtype=dtype)[1:]
            codec.decode(moved, into)
            assert torch.equal(into, expected)


def test_seeds_of_any_size(codec: Codec) -> None:
    vector = numbers(300)
    for seed in (-1, 0, 2**63, 2**64 + 5, 2**100):
        payload = codec.encode(vector, seed)
        assert torch.equal(payload, codec.encode(vector, seed))
        decoded(codec, payload, vector)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 3.4e38])
def test_numbers_that_are_not_finite_are_refused_in_words_or_sent(
    codec: Codec, value: float
) -> None:
    for size in (1, 50, 5000):
        vector = numbers(size)
        vector[size // 2] = value
        try:
            payload = codec.encode(vector, seed=2)
        except ValueError as error:
            assert "NaN, infinite, or too large" in str(error)  # noqa: PT017 - either is right
            continue
        decoded(codec, payload, vector)


def test_nothing_is_lost_with_error_feedback(feeding: Codec) -> None:
    stream = ErrorFeedback(feeding)
    given = received = torch.zeros(40, dtype=torch.float64)
    update = 0.1 * numbers(40, torch.float64, seed=5)
    for step in range(150):
        payload = stream.encode(update, seed=step)
        received = received + decoded(feeding, payload, update)
        given = given + update
    assert stream.residual is not None
    assert torch.allclose(received + stream.residual, given, rtol=0, atol=1e-9)
    # Delayed, not lost: what was received is what was given, up to a few updates.
    assert stream.norm() < 0.5 * float(given.norm())


def test_payloads_of_other_lengths_are_refused(codec: Codec) -> None:
    vector = numbers(1000)
    payload = codec.encode(vector, seed=1)
    for wrong in (payload[:-1], torch.cat([payload, payload[:1]]), payload[:0]):
        with pytest.raises(ValueError, match=r".") as caught:
            codec.decode(wrong, torch.empty_like(vector))
        assert type(caught.value).__name__ == "CodecError"


def test_descriptions_and_sizes_need_no_torch() -> None:
    asked = (
        "import sys\n"
        "from manyhands.codecs import CATALOG\n"
        "print(CATALOG.read('chain(topk(0.01), int8())').wire_bytes(10**6))\n"
        "for name in CATALOG.names(): CATALOG.describe(name)\n"
        "print(sorted({'torch', 'numpy'} & set(sys.modules)))\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", asked], capture_output=True, text=True, check=True, timeout=60
    )
    assert told.stdout.splitlines()[1] == "[]"


def test_a_chain_is_what_its_codecs_are() -> None:
    lossless = CATALOG.read("chain(exact(), deflate())")
    assert (lossless.biased, lossless.lossless, lossless.fixed_size) == (False, True, False)
    fixed = CATALOG.read("chain(topk(0.01), int8())")
    assert (fixed.biased, fixed.lossless, fixed.fixed_size) == (True, False, True)
    assert (CodecChain.biased, CodecChain.lossless, CodecChain.fixed_size) == (True, False, False)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("chain(int8(), topk(0.1))", "int8 does not select numbers"),
        ("chain(chain(topk(0.1), int8()), int4())", "chain does not select numbers"),
        ("chain(topk(0.1, feedback=true), int8())", "for the whole chain"),
        ("threshold()", "either tau or density"),
        ("threshold(tau=1.0, density=0.1)", "either tau or density"),
        ("threshold(tau=0.0)", "tau must be above 0"),
        ("topk(0.0)", "fraction must be above 0"),
        ("randomk(1.5)", "fraction must be above 0"),
        ("qsgd(levels=0)", "levels must be from 1 to 127"),
        ("int8(block=0)", "block must be at least 1"),
        ("chunked_topk(bits=9)", "bits must be from 1 to 8"),
        ("deflate(level=0)", "level must be from 1 to 9"),
    ],
)
def test_values_without_a_meaning_are_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        CATALOG.read(text)
