"""Strategies of installed packages: entry points of the group `manyhands`."""

import warnings
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

GROUP: Final = "manyhands"
"""The group of entry points: `quorum = "my_package:Quorum"`."""

_loaded: set[EntryPoint] = set()


def load_plugins(add: Callable[[Any], None]) -> int:
    """Load the entry points that were not loaded before, and add what they name.

    A module that registers its classes itself may be named, too. A package that cannot be loaded is
    named in a warning; the others are loaded.

    Returns:
        How many were loaded.
    """
    count = 0
    for point in entry_points(group=GROUP):
        if point in _loaded:
            continue
        _loaded.add(point)
        try:
            found = point.load()
            if callable(found):
                add(found)
        except Exception as error:  # noqa: BLE001 - a broken package must not end every command
            words = f"the entry point {point.name} = {point.value!r} could not be loaded: {error}"
            warnings.warn(words, stacklevel=2)
        else:
            count += 1
    return count
