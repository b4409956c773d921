"""Errors for malformed text: the problem, the text, and the position."""

import unicodedata
from collections.abc import Iterable
from difflib import get_close_matches

SHOWN_BEFORE, SHOWN_AFTER = 48, 24
"""Characters of the text shown around the problem, so that a line has at most 80 columns."""


class NotationError(ValueError):
    """A text cannot be read as a value.

    The message is the problem, then the line of the text with a caret under the position::

        there is no strategy 'alreduce'; did you mean 'allreduce'? Known: allreduce, single
          alreduce(bucket_mb=10)
          ^

    Example:
        >>> import manyhands as mh
        >>> try:
        ...     mh.strategy("push_sum(grpah=ring)")
        ... except mh.NotationError as error:
        ...     print(error)
        push_sum has no field 'grpah'; did you mean 'graph'? Known: codec, graph
          push_sum(grpah=ring)
                   ^
    """

    def __init__(self, problem: str, text: str, at: int, *, undefined: bool = False) -> None:
        super().__init__(problem, text, at)
        self.undefined = undefined
        """Whether the problem is a name that nothing has, which a script may define."""
        self.problem = problem
        """The problem and what was expected, without the text."""
        self.text = text
        self.at = at
        """The position of the problem in the text, in characters from 0."""

    def __str__(self) -> str:
        line, caret = _excerpt(self.text, self.at)
        return f"{self.problem}\n  {line}\n  {' ' * caret}^"


def unknown(problem: str, word: str, known: Iterable[str], also: Iterable[str] = ()) -> str:
    """`problem`, then the name nearest to `word`, then all known names.

    Names in `also` are suggested when they are nearest, but not listed.
    """
    listed = sorted(known)
    near = get_close_matches(word, [*listed, *also], n=1)
    question = f"; did you mean '{near[0]}'?" if near else "." if listed else ""
    return f"{problem}{question}" + (f" Known: {', '.join(listed)}" if listed else "")


def shown(character: str) -> str:
    """A character with its code point, so that similar characters can be distinguished."""
    if character.isascii() and character.isprintable():
        return repr(character)
    name = unicodedata.name(character, "")
    code = f"U+{ord(character):04X} {name}".rstrip()
    return f"'{character}' ({code})" if character.isprintable() else code


def _excerpt(text: str, at: int) -> tuple[str, int]:
    """The part of the text's line around `at`, on one printable line, and the caret's column."""
    start = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at)
    end = len(text) if end < 0 else end
    left, right = max(start, at - SHOWN_BEFORE), min(end, at + SHOWN_AFTER)
    before = ("…" if left > start else "") + text[left:at]
    after = text[at:right] + ("…" if right < end else "")
    # One character each, so that the caret stays under its position.
    line = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in before + after)
    return line, len(before)
