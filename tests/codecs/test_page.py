"""The page of codecs, and the benchmark, say what the code does."""

import re

from benchmarks.encoding_naive import NAIVE

from manyhands.codecs import ALL, CATALOG
from support import ROOT

SIZE = 10_000_000


def test_the_table_states_what_the_code_computes() -> None:
    page = (ROOT / "docs" / "codecs.md").read_text("utf-8")
    rows = re.findall(
        r"^\| `(\w+\(.*\))` \| ([\d.]+) \| ([\d.]+)× fewer \| (.*) \|$", page, re.MULTILINE
    )
    for text, size, fewer, flags in rows:
        codec = CATALOG.read(text)
        exact = codec.wire_bytes(SIZE) / SIZE
        assert float(size) == round(exact, 4), text
        assert fewer == f"{4 / exact:.1f}", text
        said = [flag == "yes" for flag in flags.split(" | ")]
        assert said == [codec.biased, codec.feeds_back, codec.fixed_size], text
    assert {CATALOG.read(text).name for text, *_ in rows} == {cls.name for cls in ALL}


def test_every_codec_has_a_naive_expression() -> None:
    assert {CATALOG.read(text).name for text in NAIVE} == {cls.name for cls in ALL}
    assert all(str(CATALOG.read(text)) == text for text in NAIVE)
