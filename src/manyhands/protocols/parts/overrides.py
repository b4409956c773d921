"""Methods that a subclass overrides, where a part of them is called."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

    from manyhands.protocols.protocol import StrategyProtocol

_DESCRIBES: Final = ("name", "support", "lacks", "obstacles")
"""Attributes that say what a strategy is, and do nothing."""


def check_overrides(
    level: StrategyProtocol, called: Collection[str], where: str, because: str
) -> None:
    """Refuse a strategy within another one whose own methods would not be called there.

    A subclass of a built-in protocol may override any method. Another strategy that is made of
    protocols calls some of them only, and would train the built-in protocol in place of it.

    Args:
        level: the inner strategy.
        called: the methods that are called.
        where: the strategy around it, as in a text.
        because: why the others are not called.

    Raises:
        ValueError: a class that is not of this package overrides another method.
    """
    given = {*called, *_DESCRIBES, *(field.name for field in fields(level))}
    classes = type(level).__mro__
    ours = [one for one in classes if one.__module__.startswith("manyhands.")]
    for cls in classes:
        if cls in ours or cls.__module__ in ("builtins", "abc", "typing"):
            continue
        for name in vars(cls):
            if name.startswith(("__", "_abc_")) or name in given:
                continue
            if any(name in vars(one) for one in ours):
                usable = ", ".join(sorted(one for one in called if not one.startswith("_")))
                raise ValueError(
                    f"{cls.__qualname__} overrides {name}, which is not called under {where}: "
                    f"{because}, and only {usable or 'its options'} of {level.name} are used: "
                    f"use {level.name} alone, or override only these"
                )
