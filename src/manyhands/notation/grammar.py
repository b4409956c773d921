r"""Parser of the notation: from text to a syntax tree. No name is looked up, nothing is called.

The grammar, in which whitespace and line breaks between tokens are ignored::

    value   = call | word | integer | real | text | list
    call    = word "(" [ argument { "," argument } [ "," ] ] ")"
    argument = value | word "=" value            positional ones first, a keyword once
    list    = "[" [ value { "," value } [ "," ] ] "]"
    word    = lower-case letter, then lower-case letters, digits and "_"
    integer = [ "-" ] digits
    real    = [ "-" ] digits [ "." digits ] [ "e" [ "-" | "+" ] digits ]
    text    = '"' characters '"'    with \" \\ \n, and \u{hex} for any other control character

Texts come from command lines, files and other machines, so every limit is checked before the
work that it limits is done, and the depth of the recursion is bounded by `MAX_DEPTH`.
"""

import math
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from manyhands.notation.error import NotationError, shown

MAX_LENGTH = 4096
"""Most characters of a text."""
MAX_DEPTH = 16
"""Deepest nesting of calls and lists."""
MAX_ARGUMENTS = 64
"""Most arguments of a call."""
MAX_ELEMENTS = 256
"""Most elements of a list."""
MAX_DIGITS = 40
"""Most digits of a number, including its exponent."""
MAX_WORD = 64
"""Most characters of a word."""

RESERVED = frozenset({"true", "false", "none"})
"""Words that are values themselves, and cannot be names."""


@dataclass(frozen=True)
class _Placed:
    """A node of the tree, with its position in the text."""

    # The position is for messages only, so it is not compared.
    at: int = field(default=0, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True)
class WordNode(_Placed):
    """`ring`, `allreduce`, `true`: its meaning depends on the context."""

    text: str


@dataclass(frozen=True)
class IntegerNode(_Placed):
    """`-4`."""

    value: int


@dataclass(frozen=True)
class RealNode(_Placed):
    """`0.01`, `1e-05`; always finite."""

    value: float


@dataclass(frozen=True)
class TextNode(_Placed):
    r"""`"in \"quotes\""`, unescaped."""

    value: str


@dataclass(frozen=True)
class ListNode(_Placed):
    """`[1, 2]`."""

    elements: tuple["Node", ...]


@dataclass(frozen=True)
class KeywordNode(_Placed):
    """`staleness=4` in a call."""

    name: str
    value: "Node"


@dataclass(frozen=True)
class CallNode(_Placed):
    """`topk(0.01, feedback=true)`."""

    name: str
    positional: tuple["Node", ...] = ()
    keywords: tuple[KeywordNode, ...] = ()


Node: TypeAlias = CallNode | WordNode | IntegerNode | RealNode | TextNode | ListNode


def parse(text: str) -> Node:
    """The tree of one value; NotationError if the text is not exactly one value."""
    if len(text) > MAX_LENGTH:
        raise NotationError(
            f"a text has at most {MAX_LENGTH:,} characters, not {len(text):,}", text, MAX_LENGTH
        )
    parser = _Parser(text, _tokens(text))
    tree = parser.value(depth=1)
    parser.take("end", "the end of the text")
    return tree


def split(text: str) -> tuple[str, ...]:
    """Split a text at commas outside of brackets and quotes; empty parts are dropped.

    >>> split('allreduce, ssp(staleness=4, servers=2), gossip')
    ('allreduce', 'ssp(staleness=4, servers=2)', 'gossip')
    """
    if len(text) > MAX_LENGTH:
        raise NotationError(
            f"a text has at most {MAX_LENGTH:,} characters, not {len(text):,}", text, MAX_LENGTH
        )
    parts, begin, depth, at = [], 0, 0, 0
    while at < len(text):
        character = text[at]
        if character == '"':
            at = _closing_quote(text, at)
        elif character == "," and depth == 0:
            parts.append(text[begin:at])
            begin = at + 1
        # An unbalanced bracket is reported when the part is parsed.
        depth = max(0, depth + (character in "([") - (character in ")]"))
        at += 1
    return tuple(stripped for part in (*parts, text[begin:]) if (stripped := part.strip()))


def is_word(text: str) -> bool:
    """Whether `text` can be a name, or be written without quotes."""
    return len(text) <= MAX_WORD and _WORD.fullmatch(text) is not None and text not in RESERVED


def quote(text: str) -> str:
    """The text in double quotes, as `parse` reads it back."""
    return '"' + "".join(_escaped(character) for character in text) + '"'


# Text to tokens.

_WORD = re.compile(r"[a-z][a-z0-9_]*")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_CAPITALS = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CODE = re.compile(r"\\u\{(?P<code>[0-9a-fA-F]{1,6})\}")
_SPACE = " \t\r\n"
_MARKS = "()[],="
_ESCAPES = {"n": "\n", '"': '"', "\\": "\\"}
_ESCAPED = {character: f"\\{letter}" for letter, character in _ESCAPES.items()}


@dataclass(frozen=True)
class _Token:
    """A token of the text, with its position."""

    kind: str
    text: str
    at: int


def _tokens(text: str) -> tuple[_Token, ...]:
    tokens: list[_Token] = []
    at = 0
    while at < len(text):
        character = text[at]
        if character in _SPACE:
            at += 1
            continue
        if character in _MARKS:
            token = _Token(character, character, at)
        elif character == '"':
            token = _Token("text", text[at : _closing_quote(text, at) + 1], at)
        elif match := _NUMBER.match(text, at):
            token = _Token("number", match[0], at)
        elif match := _WORD.match(text, at):
            token = _Token("word", match[0], at)
            if len(match[0]) > MAX_WORD:
                raise NotationError(f"a word has at most {MAX_WORD} characters", text, at)
        else:
            raise _stray(text, at)
        tokens.append(token)
        at += len(token.text)
    return (*tokens, _Token("end", "", len(text)))


def _closing_quote(text: str, opening: int) -> int:
    at = opening + 1
    while at < len(text) and text[at] != '"':
        at += text[at] == "\\"  # what is escaped does not close the text
        if at < len(text) and _is_control(text[at]):
            problem = f"{shown(text[at])} in a text is written {_escaped(text[at])}"
            raise NotationError(problem, text, at)
        at += 1
    if at >= len(text):
        raise NotationError('this text has no closing ", which was expected', text, opening)
    return at


def _stray(text: str, at: int) -> NotationError:
    """The error for a position at which no token starts, with the fix for common mistakes."""
    character = text[at]
    expected = "expected a name, a number, a text in double quotes or a list"
    if character == "'":
        expected = 'a text is written in double quotes: "…"'
    elif character == "-":
        expected = "expected digits after '-'"
    elif character == ".":
        expected = "a number starts with a digit: 0.5, not .5"
    elif match := _CAPITALS.match(text, at):
        fix = match[0].lower()
        hint = f": '{fix}'" if is_word(fix) or fix in RESERVED else ""
        expected = f"names are lower-case and start with a letter{hint}"
    return NotationError(f"unexpected {shown(character)}; {expected}", text, at)


def _is_control(character: str) -> bool:
    # Also surrogates, which no file can hold, and Unicode's own line breaks.
    return unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"}


def _escaped(character: str) -> str:
    if character in _ESCAPED:
        return _ESCAPED[character]
    return f"\\u{{{ord(character):x}}}" if _is_control(character) else character


# Tokens to a tree.

_Part = TypeVar("_Part")


class _Parser:
    """A recursive-descent parser of one text."""

    def __init__(self, text: str, tokens: tuple[_Token, ...]) -> None:
        self._text = text
        self._tokens = tokens
        self._next = 0

    def take(self, kind: str, expected: str) -> _Token:
        """The next token, which has to be of this kind."""
        token = self._tokens[self._next]
        if token.kind != kind:
            found = "the end of the text" if token.kind == "end" else _short(token.text)
            raise NotationError(f"expected {expected}, found {found}", self._text, token.at)
        self._next += 1
        return token

    def value(self, depth: int) -> Node:
        token = self._tokens[self._next]
        opens = token.kind == "[" or (token.kind == "word" and self._follows("("))
        if opens and depth > MAX_DEPTH:
            problem = f"calls and lists are nested at most {MAX_DEPTH} deep"
            raise NotationError(problem, self._text, token.at)
        match token.kind:
            case "word" if opens:
                return self._call(depth)
            case "word":
                self._next += 1
                return WordNode(token.text, at=token.at)
            case "number":
                self._next += 1
                return self._number(token)
            case "text":
                self._next += 1
                return TextNode(self._unescaped(token), at=token.at)
            case "[":
                return self._list(depth)
            case _:
                self.take("word", "a value")  # always raises: a word was handled above
                raise AssertionError(token)

    def _follows(self, kind: str) -> bool:
        """Whether a token of this kind follows the next one."""
        return self._tokens[self._next + 1].kind == kind

    def _call(self, depth: int) -> CallNode:
        name = self.take("word", "a name")
        self.take("(", "'('")
        arguments = self._separated(
            ")", lambda: self._argument(depth + 1), MAX_ARGUMENTS, f"arguments of '{name.text}'"
        )
        positional: list[Node] = []
        keywords: dict[str, KeywordNode] = {}
        for argument in arguments:
            if not isinstance(argument, KeywordNode):
                if keywords:
                    problem = "positional arguments come before keywords; name this one too"
                    raise NotationError(problem, self._text, argument.at)
                positional.append(argument)
            elif argument.name in keywords:
                problem = f"'{argument.name}' is given twice; keep one"
                raise NotationError(problem, self._text, argument.at)
            else:
                keywords[argument.name] = argument
        return CallNode(name.text, tuple(positional), tuple(keywords.values()), at=name.at)

    def _argument(self, depth: int) -> Node | KeywordNode:
        if self._tokens[self._next].kind == "word" and self._follows("="):
            name = self.take("word", "a field's name")
            self.take("=", "'='")
            return KeywordNode(name.text, self.value(depth), at=name.at)
        return self.value(depth)

    def _list(self, depth: int) -> ListNode:
        opening = self.take("[", "'['")
        elements = self._separated(
            "]", lambda: self.value(depth + 1), MAX_ELEMENTS, "elements of a list"
        )
        return ListNode(tuple(elements), at=opening.at)

    def _separated(
        self, closing: str, part: Callable[[], _Part], limit: int, what: str
    ) -> list[_Part]:
        """Parts separated by commas, with an optional one at the end, up to `closing`."""
        parts: list[_Part] = []
        while self._tokens[self._next].kind != closing:
            if len(parts) == limit:
                at = self._tokens[self._next].at
                raise NotationError(f"more than {limit} {what}", self._text, at)
            parts.append(part())
            if self._tokens[self._next].kind != closing:
                self.take(",", f"',' or '{closing}'")
        self.take(closing, f"'{closing}'")
        return parts

    def _number(self, token: _Token) -> IntegerNode | RealNode:
        # Before int() and float(), whose time grows with the digits.
        digits = sum(character.isdigit() for character in token.text)
        if digits > MAX_DIGITS:
            problem = f"a number has at most {MAX_DIGITS} digits, not {digits}"
            raise NotationError(problem, self._text, token.at)
        if set(token.text) <= set("-0123456789"):
            return IntegerNode(int(token.text), at=token.at)
        value = float(token.text)
        written_zero = not set("123456789") & set(token.text.lower().partition("e")[0])
        if not math.isfinite(value) or (value == 0 and not written_zero):
            problem = f"{token.text} is beyond a float; expected a size of 5e-324 to 1.8e308, or 0"
            raise NotationError(problem, self._text, token.at)
        return RealNode(value, at=token.at)

    def _unescaped(self, token: _Token) -> str:
        inside = token.text[1:-1]
        characters: list[str] = []
        at = 0
        while at < len(inside):
            if inside[at] != "\\":
                characters.append(inside[at])
                at += 1
            elif inside[at + 1] in _ESCAPES:
                characters.append(_ESCAPES[inside[at + 1]])
                at += 2
            elif (code := _CODE.match(inside, at)) and int(code["code"], 16) <= 0x10FFFF:
                characters.append(chr(int(code["code"], 16)))
                at += len(code[0])
            else:
                problem = r"unknown escape; expected \", \\, \n or \u{hexadecimal code}"
                raise NotationError(problem, self._text, token.at + 1 + at)
        return "".join(characters)


def _short(text: str) -> str:
    return f"'{text}'" if len(text) <= 32 else f"'{text[:31]}…'"
