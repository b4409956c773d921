r"""Sweeps: a text with ranges or sets in it, and the texts that it stands for.

A sweep has one or several of these where a value may be::

    range   = number ".." number [ "step" number ]      both ends included; step 1 by default
    set     = "{" item { "," item } "}"                 items are kept as they are written

It is expanded before anything is parsed, so the grammar of values does not know of it, and a
strategy in a trace or in results is always one strategy
(`docs/decisions/0053-sweeps-and-evaluation-points.md`)::

    softsync(wait_for=1..8)             softsync(wait_for=1), softsync(wait_for=2), …
    workers=2..8 step 2                 workers=2, workers=4, workers=6, workers=8
    diloco(every={10, 50, 250})         diloco(every=10), diloco(every=50), diloco(every=250)
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import product

from manyhands.notation.error import NotationError
from manyhands.notation.grammar import MAX_DIGITS, MAX_LENGTH

MAX_VALUES = 100
"""Most texts that one sweep stands for."""

Path = tuple[str | int, ...]
"""Where a value is: in every call around it the name of the argument, or its number from 0."""

_NUMBER = r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"
_RANGE = re.compile(rf"({_NUMBER})\s*\.\.\s*({_NUMBER})(?:\s*step\b\s*({_NUMBER}))?")
_TEXT = re.compile(r'"(?:\\.|[^"\\])*"')
_KEYWORD = re.compile(r"([a-z][a-z0-9_]*)\s*=")
_WORD = re.compile(r"[A-Za-z0-9_.+-]+?(?=\.\.|[^A-Za-z0-9_.+-]|$)")
_OPENING = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True)
class Alternative:
    """One of the texts that a sweep stands for."""

    text: str
    values: tuple[tuple[Path, str], ...]
    """What was written in place of each range and set, in order."""


@dataclass(frozen=True)
class _Swept:
    """A range or a set in a text."""

    begin: int
    end: int
    path: Path
    values: tuple[str, ...]


def alternatives(text: str) -> tuple[Alternative, ...]:
    """The texts that a sweep stands for; the last range varies fastest.

    >>> [each.text for each in alternatives("ssp(staleness=0..4 step 2)")]
    ['ssp(staleness=0)', 'ssp(staleness=2)', 'ssp(staleness=4)']
    >>> alternatives("bandwidth={10mbit, 1gbit}")[0].values
    ((('bandwidth',), '10mbit'),)

    Raises:
        NotationError: there is no range or set, or one of them is not complete; or they stand for
            more than `MAX_VALUES` texts.
    """
    found = tuple(_find(text)) if len(text) <= MAX_LENGTH else ()
    if not found:
        problem = "expected a range or a set of values, as in 1..8, 0..8 step 2 or {10, 50}"
        raise NotationError(problem, text, 0)
    count = 1
    for each in found:
        count *= len(each.values)
        if count > MAX_VALUES:
            problem = f"a sweep has at most {MAX_VALUES} values; use a step or a set"
            raise NotationError(problem, text, each.begin)
    return tuple(_written(text, found, values) for values in product(*(s.values for s in found)))


def has_sweep(text: str) -> bool:
    """Whether there is a range or a set in a text.

    >>> has_sweep("ssp(staleness=0..4)"), has_sweep("ssp(staleness=4)")
    (True, False)
    """
    try:
        return next(_find(text), None) is not None
    except NotationError:
        return True


def _written(text: str, found: tuple[_Swept, ...], values: tuple[str, ...]) -> Alternative:
    parts, at = [], 0
    for each, value in zip(found, values, strict=True):
        parts += [text[at : each.begin], value]
        at = each.end
    paths = (each.path for each in found)
    whole = "".join((*parts, text[at:]))
    return Alternative(whole.strip(), tuple(zip(paths, values, strict=True)))


def _find(text: str) -> Iterator[_Swept]:
    """The ranges and sets of a text, in order."""
    path: list[str | int] = [0]
    at = 0
    while at < len(text):
        mark = text[at]
        if match := _TEXT.match(text, at):
            at = match.end()
        elif match := _RANGE.match(text, at):
            yield _Swept(at, match.end(), tuple(path), _numbers(text, match))
            at = match.end()
        elif text.startswith("..", at):
            problem = "expected a number on both sides of '..', as in 1..8"
            raise NotationError(problem, text, at)
        elif mark == "{":
            items, end = _items(text, at)
            yield _Swept(at, end, tuple(path), items)
            at = end
        elif match := _KEYWORD.match(text, at):
            path[-1] = match[1]
            at = match.end()
        elif match := _WORD.match(text, at):
            at = match.end()
        else:
            _move(path, mark)
            at += 1


def _move(path: list[str | int], mark: str) -> None:
    """Follow a bracket or a comma; brackets that do not match are reported by the parser."""
    if mark in "([":
        path.append(0)
    elif mark in ")]" and len(path) > 1:
        path.pop()
    elif mark == ",":
        last = path[-1]
        path[-1] = last + 1 if isinstance(last, int) else 0


def _numbers(text: str, match: re.Match[str]) -> tuple[str, ...]:
    for group in (1, 2, 3):
        if match[group] and sum(map(str.isdigit, match[group])) > MAX_DIGITS:
            problem = f"a number has at most {MAX_DIGITS} digits"
            raise NotationError(problem, text, match.start(group))
    first, last = Decimal(match[1]), Decimal(match[2])
    step = Decimal(match[3] or 1)
    if step <= 0:
        raise NotationError("a step must be above 0", text, match.start(3))
    if last < first:
        problem = f"a range goes upwards: {match[2]}..{match[1]}"
        raise NotationError(problem, text, match.start())
    if (last - first) / step >= MAX_VALUES:
        problem = f"a sweep has at most {MAX_VALUES} values; use a larger step, or a set"
        raise NotationError(problem, text, match.start())
    return tuple(f"{first + number * step:f}" for number in range(int((last - first) / step) + 1))


def _items(text: str, opening: int) -> tuple[tuple[str, ...], int]:
    """The items of a set, and the position after its closing brace."""
    items, closing, begin, at = [], ["}"], opening + 1, opening + 1
    while at < len(text) and closing:
        mark = text[at]
        if match := _TEXT.match(text, at):
            at = match.end()
            continue
        if mark in _OPENING:
            closing.append(_OPENING[mark])
        elif mark == closing[-1]:
            closing.pop()
        if (mark == "," and len(closing) == 1) or not closing:
            items.append((text[begin:at].strip(), begin))
            begin = at + 1
        at += 1
    if closing:
        raise NotationError("this set has no closing '}', which was expected", text, opening)
    for item, where in items:
        if not item:
            problem = "expected a value in the set, as in {10, 50, 250}"
            raise NotationError(problem, text, where)
        if has_sweep(item):
            raise NotationError("a set has single values: no range, no set in it", text, where)
    written = [item for item, _ in items]
    for number, (item, where) in enumerate(items):
        if item in written[:number]:
            raise NotationError(f"{item} is in the set twice; keep one", text, where)
    return tuple(written), at
