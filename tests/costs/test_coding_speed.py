"""Default speeds of codecs: the table is that of the stored benchmark, and every codec has one."""

import json
from pathlib import Path

import pytest

from manyhands.codecs import ALL, CATALOG
from manyhands.costs import CodingSpeed, CodingSpeeds
from manyhands.costs.coding_speed import MEASURED, measured_speed

_STORED = Path(__file__).parents[2] / "benchmarks" / "results" / "encoding.json"


def test_the_table_is_what_the_benchmark_stored() -> None:
    found = json.loads(_STORED.read_text(encoding="utf-8"))["figures"]["codecs"]
    stored = {
        text.partition("(")[0]: tuple(
            1e9 * one["gigabytes_per_second"][part][0]
            for part in ("encode", "encode_rest", "decode")
        )
        for text, one in found.items()
    }
    assert set(MEASURED) == set(stored) == {one.name for one in ALL}
    for name, speeds in MEASURED.items():
        assert speeds == pytest.approx(stored[name], rel=0.006), name


def test_error_feedback_is_computed_while_encoding() -> None:
    plain, fed = (measured_speed(CATALOG.read(one)) for one in ("int8()", "int8(feedback=true)"))
    assert (plain.encode, fed.encode) == (1.02e9, 0.692e9)
    assert plain.decode == fed.decode


def test_a_chain_that_deflates_takes_both_codecs_time() -> None:
    chain = measured_speed(CATALOG.read("chain(int8(), deflate())"))
    assert 1 / chain.encode == pytest.approx(1 / 1.02e9 + 1 / 0.115e9)
    assert 1 / chain.decode == pytest.approx(1 / 2.0e9 + 1 / 0.32e9)


def test_a_codec_of_ones_own_has_the_middle_speed() -> None:
    class Own:
        name = "own"
        feeds_back = False

    found = measured_speed(Own())
    encoding = sorted(one[0] for one in MEASURED.values())
    assert encoding[0] < found.encode < encoding[-1]


@pytest.mark.parametrize("text", ["fast", "-1GB/s", "0", ""])
def test_a_speed_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="bandwidth"):
        CodingSpeeds.read(text)


def test_a_given_speed_holds_for_all_codecs_in_both_directions() -> None:
    given = CodingSpeeds.read("500MB/s")
    assert {given.of(CATALOG.read(one)) for one in ("topk()", "half()")} == {CodingSpeed(5e8, 5e8)}
