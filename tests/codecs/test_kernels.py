"""The kernels of codecs against plain references."""

import hashlib
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manyhands.codecs import CATALOG, CodecError
from manyhands.codecs.kernels.chunks import largest_of_chunks
from manyhands.codecs.kernels.digits import pack, pack_planes, unpack, unpack_planes
from manyhands.codecs.kernels.largest import GROUPS, SAMPLE, largest, magnitudes
from manyhands.codecs.kernels.noise import Noise
from manyhands.codecs.kernels.positions import read_positions, write_positions
from manyhands.codecs.kernels.sizes import most_position_bytes, plane_bytes, position_bytes


@given(st.data())
def test_positions_are_read_as_written(data: st.DataObject) -> None:
    size = data.draw(st.integers(0, 3000))
    chosen = data.draw(st.sets(st.integers(0, max(0, size - 1)), max_size=size)) if size else set()
    positions = np.array(sorted(chosen), np.int64)
    written = write_positions(positions, size)
    assert written.size == position_bytes(positions.size, size)
    assert (read_positions(written, positions.size, size) == positions).all()


def test_the_most_bytes_of_positions_are_exact() -> None:
    for size in (*range(40), 100, 257, 1000):
        for count in {0, 1, 2, size // 100, size // 10, size // 3, size // 2, size - 1, size}:
            if 0 <= count <= size:
                exact = max(
                    position_bytes(number, size) + plane_bytes(number, 1)
                    for number in range(count + 1)
                )
                assert most_position_bytes(count, size, bits=1) == exact


def test_positions_take_few_bits() -> None:
    for size, count, bits in ((10**7, 10**5, 8.6), (4096, 64, 8.0)):
        assert position_bytes(count, size) * 8 / count < bits + 0.01


@pytest.mark.parametrize(("base", "per_byte"), [(255, 1), (15, 2), (5, 3), (3, 5)])
def test_digits_are_read_as_written(base: int, per_byte: int) -> None:
    for count in (1, 2, 4, 5, 7, 1000):
        codes = np.random.default_rng(count).integers(0, base, count).astype(np.uint8)
        packed = np.empty(-(-count // per_byte), np.uint8)
        pack(codes, base, per_byte, packed)
        again = np.empty_like(codes)
        unpack(packed, base, per_byte, again)
        assert (again == codes).all()
        packed[0] = 255
        with pytest.raises(CodecError, match="digits"):
            unpack(packed, base, per_byte, again)


def test_planes_are_read_as_written() -> None:
    values = np.random.default_rng(0).integers(0, 2**13, 1001)
    packed = pack_planes(values, 13)
    assert packed.size == plane_bytes(1001, 13)
    assert (unpack_planes(packed, 13, 1001) == values).all()


def sorted_by_size(values: np.ndarray) -> np.ndarray:
    """All positions: the largest number first, of equal ones the first."""
    return np.argsort(~magnitudes(values), kind="stable")


def test_the_largest_are_those_of_a_full_sort() -> None:
    draw = np.random.default_rng(3)
    size = 4 * SAMPLE + 123
    normal = draw.standard_normal(size).astype(np.float32)
    clustered = normal.copy()
    clustered[:5000] *= 1000
    unlucky = normal.copy()
    unlucky[:: max(1, size // SAMPLE) | 1] *= 1e6  # all of the sample, and nothing else
    ties = np.round(normal * 2) / 2
    zeros = np.where(draw.random(size) < 0.001, normal, 0)
    broken = normal.copy()
    broken[[5, 77]] = [np.nan, -np.inf]
    for values in (normal, clustered, unlucky, ties, zeros.astype(np.float32), broken):
        order = sorted_by_size(values)
        for count in (1, size // 100, size // 10):
            assert (largest(values, count) == np.sort(order[:count])).all()
    assert {5, 77} <= set(largest(broken, 2).tolist())


def test_the_largest_of_chunks_are_those_of_a_full_sort() -> None:
    draw = np.random.default_rng(4)
    for width in (GROUPS * 16, GROUPS * 8, 100):
        normal = draw.standard_normal((5, width)).astype(np.float32)
        ties = np.round(normal * 4) / 4
        ties[2] = 0
        for values in (normal, ties, normal.astype(np.float64)):
            for count in (1, 7, 64):
                found = largest_of_chunks(values.reshape(-1), width, (count, 0))
                rows = [
                    np.sort(sorted_by_size(row)[:count]) + index * width
                    for index, row in enumerate(values)
                ]
                assert (found == np.concatenate(rows)).all()


@pytest.mark.parametrize(("dtype", "bits"), [(np.float32, 16), (np.float64, 32)])
def test_numbers_of_a_seed_are_on_a_grid_that_is_exact(dtype: type, bits: int) -> None:
    noise = Noise(5, pieces=3, longest=1000, dtype=np.dtype(dtype), shift=127)
    for piece in range(3):
        numbers = noise.of(piece, 1000).astype(np.float64) - 127
        assert ((numbers > 0) & (numbers < 1)).all()
        places = numbers * 2**bits - 0.5
        assert (places == np.round(places)).all()
        assert abs(numbers.mean() - 0.5) < 5 * 12**-0.5 / 1000**0.5


def test_chunks_of_sparse_loco_are_195_times_smaller() -> None:
    codec = CATALOG.read("chunked_topk(chunk=4096, fraction=0.0156, bits=2)")
    assert codec.wire_bytes(4096) == 84
    assert 4 * 10**8 / codec.wire_bytes(10**8) > 195


def test_a_chunk_is_sent_within_half_a_step() -> None:
    codec = CATALOG.read("chunked_topk(chunk=256, fraction=0.25, bits=4)")
    vector = torch.randn(1024, generator=torch.Generator().manual_seed(0))
    into = torch.empty_like(vector)
    codec.decode(codec.encode(vector), into)
    for given_, sent in zip(vector.view(4, -1), into.view(4, -1), strict=True):
        chosen = sent != 0
        assert int(chosen.sum()) == 64
        size = given_[chosen].abs()
        assert size.min() >= given_[~chosen].abs().max()
        step = float(size.max() - size.min()) / 8
        # bfloat16 bounds are at most 1/128 lower than the magnitudes.
        assert (given_ - sent)[chosen].abs().max() <= step / 2 + float(size.max()) / 128


def test_what_would_fill_the_memory_is_not_inflated() -> None:
    bomb = zlib.compress(bytes(5_000_000), 1)
    payload = torch.tensor([1, *len(bomb).to_bytes(8, "little"), *bomb], dtype=torch.uint8)
    with pytest.raises(CodecError, match="more than 10 bytes"):
        CATALOG.read("deflate()").decode(payload, torch.empty(10))
    chained = torch.tensor([1, *bomb], dtype=torch.uint8)
    with pytest.raises(CodecError, match="more than"):
        CATALOG.read("chain(int8(), deflate())").decode(chained, torch.empty(10))


def test_a_threshold_that_is_zero_in_half_precision_is_refused() -> None:
    with pytest.raises(ValueError, match=r"tau is 0\.0"):
        CATALOG.read("threshold(tau=1e-9)").encode(torch.ones(3, dtype=torch.float16))


def test_the_density_is_met() -> None:
    vector = torch.randn(500_000, generator=torch.Generator().manual_seed(0))
    for density in (0.001, 0.01, 0.1):
        into = torch.empty_like(vector)
        codec = CATALOG.read(f"threshold(density={density})")
        codec.decode(codec.encode(vector), into)
        assert abs(int(into.count_nonzero()) / vector.numel() / density - 1) < 0.35


DIGESTS = {
    "half()": "9814c728b4b173ed",
    "bfloat16()": "58f853ffcafd7176",
    "int8()": "dfd8204af91122ed",
    "int4()": "f36f8871e2c2ac76",
    "qsgd()": "6a01db08fa7f88dc",
    "ternary()": "b676dff7b3b529ac",
    "onebit()": "8f2de24e86d3d451",
    "threshold(density=0.01)": "538c605caf78b214",
    "topk()": "0f3ca32571c6fc24",
    "randomk()": "78412950b3c2c9f9",
    "chunked_topk()": "7eac934a428cd729",
    "chain(topk(0.1), int8())": "dc708468d0592c25",
}
"""Payloads that are the same on every machine and in every version."""


@pytest.mark.parametrize("text", DIGESTS)
def test_payloads_are_the_same_on_every_machine(text: str) -> None:
    places = torch.arange(100_003)
    spread = (places * 2654435761 % 2**32).double() / 2**32 - 0.5
    vector = (spread * spread * spread).float()
    payload = CATALOG.read(text).encode(vector, seed=12345)
    assert hashlib.sha256(payload.numpy().tobytes()).hexdigest()[:16] == DIGESTS[text]
