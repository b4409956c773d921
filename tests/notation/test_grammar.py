"""Text to tree: what is read, and what is said about what is not."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.notation import NotationError, parse
from manyhands.notation.grammar import (
    MAX_ARGUMENTS,
    MAX_DEPTH,
    MAX_DIGITS,
    MAX_ELEMENTS,
    MAX_LENGTH,
    MAX_WORD,
    CallNode,
    IntegerNode,
    KeywordNode,
    ListNode,
    Node,
    RealNode,
    TextNode,
    WordNode,
    is_word,
    quote,
)


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("allreduce", WordNode("allreduce")),
        ("allreduce()", CallNode("allreduce")),
        ("true", WordNode("true")),
        ("0", IntegerNode(0)),
        ("-12", IntegerNode(-12)),
        ("007", IntegerNode(7)),
        ("0.5", RealNode(0.5)),
        ("-1e-05", RealNode(-1e-05)),
        ("1E+3", RealNode(1000.0)),
        ("0.0e-999", RealNode(0.0)),
        ('""', TextNode("")),
        (r'"a \"b\" \\ \n \u{1f} \u{1F600}"', TextNode('a "b" \\ \n \x1f 😀')),
        ("[]", ListNode(())),
        ("[1, [2], x]", ListNode((IntegerNode(1), ListNode((IntegerNode(2),)), WordNode("x")))),
        ("[1,]", ListNode((IntegerNode(1),))),
        (
            "ssp(4, codec=topk(0.01), names=[a],)",
            CallNode(
                "ssp",
                (IntegerNode(4),),
                (
                    KeywordNode("codec", CallNode("topk", (RealNode(0.01),))),
                    KeywordNode("names", ListNode((WordNode("a"),))),
                ),
            ),
        ),
        (
            " \t\r\n ssp \n ( staleness\n=\n4 ) ",
            CallNode("ssp", (), (KeywordNode("staleness", IntegerNode(4)),)),
        ),
    ],
)
def test_reads(text: str, tree: Node) -> None:
    assert parse(text) == tree


def test_numbers_keep_their_type() -> None:
    assert isinstance(parse("1"), IntegerNode)
    assert isinstance(parse("1.0"), RealNode)
    assert isinstance(parse("1e0"), RealNode)


@pytest.mark.parametrize(
    ("text", "at", "problem"),
    [
        ("", 0, "expected a value, found the end of the text"),
        ("   ", 3, "expected a value, found the end of the text"),
        ("ssp(", 4, "expected a value, found the end of the text"),
        ("ssp(4", 5, "expected ',' or ')', found the end of the text"),
        ("ssp(4]", 5, "expected ',' or ')', found ']'"),
        ("[4)", 2, "expected ',' or ']', found ')'"),
        ("ssp(,)", 4, "expected a value, found ','"),
        ("ssp(4,,5)", 6, "expected a value, found ','"),
        ("ssp(a=)", 6, "expected a value, found ')'"),
        ("ssp(a=1=2)", 7, "expected ',' or ')', found '='"),
        ("ssp(4)(5)", 6, "expected the end of the text, found '('"),
        ("ssp() ssp()", 6, "expected the end of the text, found 'ssp'"),
        ("ssp(4 5)", 6, "expected ',' or ')', found '5'"),
        ("4x", 1, "expected the end of the text, found 'x'"),
        ("ssp(a=1, 2)", 9, "positional arguments come before keywords"),
        ("ssp(a=1, b=2, a=3)", 14, "'a' is given twice"),
        ("ssp(1.)", 5, "a number starts with a digit"),
        ("ssp(.5)", 4, "0.5, not .5"),
        ("ssp(-x)", 4, "expected digits after '-'"),
        ("-inf", 0, "expected digits after '-'"),
        ("1e999", 0, "1e999 is beyond a float"),
        ("1e-999", 0, "1e-999 is beyond a float"),
        ("ssp(True)", 4, "names are lower-case and start with a letter: 'true'"),
        ("SSP(4)", 0, "names are lower-case and start with a letter: 'ssp'"),
        ("__import__", 0, "unexpected '_'; names are lower-case and start with a letter"),
        ("os.system", 2, "unexpected '.'"),
        ("ssp('a')", 4, 'a text is written in double quotes: "…"'),
        ("{}", 0, "unexpected '{'; expected a name, a number, a text in double quotes or a list"),
        ("аllreduce", 0, "U+0430 CYRILLIC SMALL LETTER A"),
        ("ssp(\u00a0)", 4, "U+00A0 NO-BREAK SPACE"),
        ("ssp(٤)", 4, "U+0664 ARABIC-INDIC DIGIT FOUR"),
        ("a\0", 1, "U+0000"),
        ('"abc', 0, "no closing"),
        ('"abc\\"', 0, "no closing"),
        ('"a\nb"', 2, r"U+000A in a text is written \n"),
        ('"a\\\x1bb"', 3, r"U+001B in a text is written \u{1b}"),
        ('"a\tb"', 2, r"U+0009 in a text is written \u{9}"),
        ('"a\u2028b"', 2, r"is written \u{2028}"),
        (r'"\x41"', 1, "unknown escape"),
        (r'"\u{110000}"', 1, "unknown escape"),
        (r'"\u{}"', 1, "unknown escape"),
    ],
)
def test_refuses_and_says_where(text: str, at: int, problem: str) -> None:
    with pytest.raises(NotationError) as caught:
        parse(text)
    assert problem in caught.value.problem
    assert caught.value.at == at


@pytest.mark.parametrize(
    ("within", "beyond", "problem"),
    [
        ("x" + " " * (MAX_LENGTH - 1), "x" + " " * MAX_LENGTH, "at most 4,096 characters"),
        ("[" * MAX_DEPTH + "]" * MAX_DEPTH, "[" * (MAX_DEPTH + 1), "at most 16 deep"),
        ("f(" * 16 + "x" + ")" * 16, "f(" * 16 + "f()" + ")" * 16, "at most 16 deep"),
        (f"f({'1,' * MAX_ARGUMENTS})", f"f({'1,' * MAX_ARGUMENTS}1)", "more than 64 arguments"),
        (f"[{'1,' * MAX_ELEMENTS}]", f"[{'1,' * MAX_ELEMENTS}1]", "more than 256 elements"),
        ("9" * MAX_DIGITS, "9" * (MAX_DIGITS + 1), "at most 40 digits, not 41"),
        ("-0." + "9" * 39, "9" * 400, "at most 40 digits, not 400"),
        ("1e-0000000000000000000000000000000000001", "1e" + "0" * 40, "at most 40 digits"),
        ("x" * MAX_WORD, "x" * (MAX_WORD + 1), "at most 64 characters"),
    ],
)
def test_limits(within: str, beyond: str, problem: str) -> None:
    parse(within)
    with pytest.raises(NotationError, match=problem):
        parse(beyond)


def test_message_shows_the_line_and_a_caret_under_the_place() -> None:
    with pytest.raises(NotationError) as caught:
        parse("ssp(\n  staleness=4,\n  codec=?)\n")
    assert str(caught.value).splitlines()[1:] == ["    codec=?)", "          ^"]


def test_message_stays_within_a_terminal_and_printable() -> None:
    with pytest.raises(NotationError) as caught:
        parse("f(" + "x, " * 40 + '"\x1b[31m\udc80"' + ", x" * 40)
    _, line, caret = str(caught.value).splitlines()
    assert len(line) <= 80
    assert line.isprintable()
    assert line.startswith("  …")
    assert line.endswith("…")
    assert line[caret.index("^")] == "\N{REPLACEMENT CHARACTER}"
    str(caught.value).encode()


def test_error_can_be_copied() -> None:
    error = NotationError("problem", "text", 2)
    assert str(copy.copy(error)) == str(error) == "problem\n  text\n    ^"


@given(st.text(alphabet=st.characters(), max_size=200))
def test_quoted_text_reads_back(text: str) -> None:
    quoted = quote(text)
    assert parse(quoted) == TextNode(text)
    assert len(quoted.splitlines()) == 1
    quoted.encode()


@given(st.from_regex(r"[a-z][a-z0-9_]{0,63}", fullmatch=True))
def test_a_word_parses_to_itself(text: str) -> None:
    assert parse(text) == WordNode(text)
    assert is_word(text) == (text not in {"true", "false", "none"})


@given(st.text(alphabet=st.characters(), max_size=100))
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        parse(text)
    except NotationError as error:
        at, message = error.at, str(error)
        assert 0 <= at <= len(text)
        message.encode()
