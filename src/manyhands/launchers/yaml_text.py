"""Writing YAML: plain values as readable text, whatever characters they have."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

YamlValue: TypeAlias = "str | int | bool | Sequence[YamlValue] | Mapping[str, YamlValue]"

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*(:[A-Za-z0-9_./-]+)*")
"""Texts without a character that means something in YAML; a colon is followed by no space."""
_WORDS = re.compile(r"y|yes|n|no|true|false|on|off|null", re.IGNORECASE)
"""Words that YAML 1.1 or 1.2 reads as something else than a text."""
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}


def write_yaml(*documents: Mapping[str, YamlValue]) -> str:
    """The text of documents, which every parser of YAML reads as these values.

    >>> print(write_yaml({"name": "a", "args": ["--epochs", "1", "no: comment"]}), end="")
    name: a
    args:
      - "--epochs"
      - "1"
      - "no: comment"

    Raises:
        ValueError: a text has a half of a surrogate pair, which no encoding can have.
    """
    return "---\n".join("".join(f"{line}\n" for line in _mapping(one)) for one in documents)


def _mapping(values: Mapping[str, YamlValue]) -> list[str]:
    lines = []
    for name, value in values.items():
        first, *more = _value(value)
        lines += [f"{_scalar(name)}:{first}", *more]
    return lines


def _value(value: YamlValue) -> list[str]:
    """What follows the colon of an entry, and the lines below it."""
    if isinstance(value, str) and "\n" in value and _fits_block(value):
        # "-", "" and "+" keep no, one and all line breaks at the end.
        body = value.rstrip("\n")
        end = {0: "-", 1: ""}.get(len(value) - len(body), "+")
        lines = value.removesuffix("\n").split("\n")
        return [f" |{end}", *_indented(lines)]
    if isinstance(value, Mapping) and value:
        return ["", *_indented(_mapping(value))]
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        return ["", *_indented([line for one in value for line in _item(one)])]
    return [f" {_scalar(value)}"]


def _item(value: YamlValue) -> list[str]:
    if isinstance(value, Mapping) and value:
        first, *more = _mapping(value)
        return [f"- {first}", *_indented(more)]
    return [f"- {_scalar(value)}"]


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" if line else "" for line in lines]


def _fits_block(text: str) -> bool:
    """Whether a text can be written as it is, line by line."""
    lines = text.split("\n")
    begins = next((line for line in lines if line), "")
    return bool(begins) and begins[0] not in " \t" and all(map(str.isprintable, lines))


def _scalar(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str):
        return str(value) if isinstance(value, int) else ("{}" if value == {} else "[]")
    if _PLAIN.fullmatch(value) and not _WORDS.fullmatch(value):
        return value
    return f'"{"".join(map(_character, value))}"'


def _character(one: str) -> str:
    code = ord(one)
    if 0xD800 <= code <= 0xDFFF:
        raise ValueError(
            f"a text has the byte {code & 0xFF:#04x}, which is not UTF-8: write it in UTF-8"
        )
    if one in _ESCAPES or one.isprintable():
        return _ESCAPES.get(one, one)
    return f"\\U{code:08X}"
