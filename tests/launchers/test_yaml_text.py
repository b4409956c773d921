"""Every parser of YAML reads what was written, whatever characters it has."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from manyhands.launchers.yaml_text import write_yaml

yaml = pytest.importorskip("yaml", reason="comes with kubernetes-validate")
TRICKY = (
    *("yes", "Y", "null", "~", "1", "1e3", "0x1F", "1:30", "2026-11-11", "=", "<<", "", "-", "?"),
    *(
        "- a",
        "a: b",
        "a:b",
        "a #b",
        "#",
        "%a",
        "@a",
        "&a",
        "*a",
        "!a",
        "|",
        ">",
        "{}",
        "[a",
        "'",
        '"',
    ),
    *(
        "\n",
        "\n\na",
        "a\n\n",
        " a\nb",
        "\ta\nb",
        "a\r\nb\n",
        "---\n",
        "...\nkind: Secret\n",
        "a\n ",
    ),
    *("a\x85b", "a\u2028b\n", "\ufeffa\nb\n", "\x00\x7f", "\U0001f600\n\U0001f600", "\\U0001"),
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(TRICKY)


@settings(max_examples=60)
@given(st.dictionaries(TEXTS, TEXTS, max_size=4), st.lists(TEXTS, max_size=4))
@example(dict.fromkeys(TRICKY, "yes"), [*TRICKY])
@example({str(at): text for at, text in enumerate(TRICKY)}, [])
def test_texts_are_read_as_they_were(texts, items):
    document = {"texts": texts, "items": items, "deep": [{"a": items, "b": True, "c": 7}]}
    written = write_yaml(document, {"kind": "second"})
    assert [*yaml.safe_load_all(written)] == [document, {"kind": "second"}]


def test_a_script_is_readable_line_by_line():
    written = write_yaml({"data": {"a.py": "import a\n\nif a:\n    b()\n"}})
    assert written == "data:\n  a.py: |\n    import a\n\n    if a:\n        b()\n"


def test_bytes_that_are_not_text_are_refused():
    with pytest.raises(ValueError, match="byte 0xff, which is not UTF-8"):
        write_yaml({"a": b"\xff".decode("utf-8", "surrogateescape")})
