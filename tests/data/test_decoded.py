import hashlib
from dataclasses import replace

import numpy as np
import pytest

from manyhands.data.decoded import Decoded
from manyhands.data.originals import Original

CONTENT = bytes(range(200)) * 100


@pytest.fixture
def decoded(monkeypatch, tmp_path, cache):
    """A set of one original, and the number of times that it was decoded."""
    times = []

    def decode(originals):
        times.append(1)
        (content,) = originals
        return np.frombuffer(content, np.uint8).reshape(100, 200), np.arange(100, dtype=np.uint8)

    (tmp_path / "data" / "things").mkdir(parents=True)
    (tmp_path / "data" / "things" / "a").write_bytes(CONTENT)
    monkeypatch.setenv("MANYHANDS_DATA", str(tmp_path / "data"))
    original = Original("a", ("things",), len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
    return Decoded("things", "train", (original,), decode, ((100, 200), (100,))), times


def arrays_of(cache):
    return sorted((cache / "decoded").iterdir())


def test_decodes_once_and_maps_from_then_on(decoded, cache, tmp_path):
    things, times = decoded
    things.arrays()
    (tmp_path / "data" / "things" / "a").unlink()
    rows, places = things.arrays()
    assert rows.tobytes() == CONTENT
    assert places.tolist() == list(range(100))
    assert len(times) == 1


def test_the_arrays_are_maps_of_files_that_nobody_can_write(decoded):
    things, _ = decoded
    for array in things.arrays():
        assert isinstance(array.base, np.memmap)
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"",
        lambda content: content[:-1],
        lambda content: content + b"!",
        lambda _: b"garbage",
        lambda content: content.replace(b"(100, 200)", b"(200, 100)"),
        lambda content: content.replace(b"|u1", b"|i1"),
    ],
    ids=["empty", "short", "long", "garbage", "shape", "dtype"],
)
def test_a_damaged_file_is_made_again(decoded, cache, damage):
    things, times = decoded
    things.arrays()
    path = arrays_of(cache)[0]
    good = path.read_bytes()
    bad = damage(good)
    assert bad != good
    # Another file under the name, as a crash leaves it: the maps above keep the old one.
    path.unlink()
    path.write_bytes(bad)
    assert things.arrays()[0].tobytes() == CONTENT
    assert path.read_bytes() == good
    assert len(times) == 2


def test_what_a_killed_process_left_is_overwritten(decoded, cache):
    import platform

    things, _ = decoded
    things.arrays()
    path = arrays_of(cache)[0]
    left = path.with_name(f"{path.name}.{platform.node()}.unfinished")
    path.rename(left)
    things.arrays()
    assert path.exists()
    assert not left.exists()


def test_a_prepared_cache_may_be_read_only(decoded, cache):
    things, _ = decoded
    things.arrays()
    # Root may write anywhere, so the permission alone would prove nothing.
    (cache / "things.lock").unlink()
    things.arrays()
    assert not (cache / "things.lock").exists()


def test_other_originals_make_other_files(decoded, cache, tmp_path):
    things, _ = decoded
    things.arrays()
    (tmp_path / "data" / "things" / "a").write_bytes(CONTENT[::-1])
    other = replace(things.originals[0], sha256=hashlib.sha256(CONTENT[::-1]).hexdigest())
    assert replace(things, originals=(other,)).arrays()[0].tobytes() == CONTENT[::-1]
    assert things.arrays()[0].tobytes() == CONTENT
    assert len(arrays_of(cache)) == 4


def test_a_decoder_that_gives_other_shapes_is_found_out(decoded):
    things, _ = decoded
    with pytest.raises(RuntimeError, match=r"got \[\(100, 200\)"):
        replace(things, shapes=((100, 100), (100,))).arrays()
