"""Why a run failed, as its log says."""

import pytest

from manyhands.lab.runs import last_line, last_words
from manyhands.strategies import strategy


def test_the_reason_is_the_message_and_not_the_caret_below_it(tmp_path) -> None:
    with pytest.raises(ValueError, match="\\^") as refused:
        strategy("ssp(stalenes=4)")
    log = tmp_path / "log.txt"
    log.write_text(f"24 of 1,800 samples\nmanyhands: {refused.value}\n\n", "utf-8")
    assert last_words(log) == f"manyhands: {str(refused.value).splitlines()[0]}"
    assert "stalenes" in last_words(log)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "Traceback\n  File x\n    f(\n    ^^\nKeyError: 'a.weight'\n",
            "KeyError: 'a.weight'",
        ),
        ("  only indented\n    ^\n", "only indented"),
        ("...\n", ""),
        ("", ""),
    ],
)
def test_the_last_words_of_a_log(tmp_path, text: str, words: str) -> None:
    log = tmp_path / "log.txt"
    log.write_text(text, "utf-8")
    assert last_words(log) == words


def test_a_log_that_is_not_there_says_nothing(tmp_path) -> None:
    assert (last_line(tmp_path / "none"), last_words(tmp_path / "none")) == ("", "")
