"""The public names of the package, and where the reference explains each object.

An object may have several public names: `strategies.ssp` is `protocols.StaleSynchronous`. It is
explained under the name that users write, and the others refer to that one.
"""

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import ModuleType

import manyhands

MODULES = (
    "manyhands",
    "manyhands.strategies",
    *(f"manyhands.{name}" for name in manyhands.__all__ if name in manyhands._FOLDERS),
    "manyhands.adapters.keras",
    "manyhands.adapters.transformers",
    "manyhands.costs",
    "manyhands.testing",
)
"""In the order in which they claim an object that several of them have."""


@dataclass(frozen=True)
class PublicName:
    """A name that users may write, and what it is."""

    module: str
    name: str
    value: object

    @property
    def path(self) -> str:
        """The whole name: `manyhands.strategies.ssp`."""
        return f"{self.module}.{self.name}"


@cache
def public_names() -> dict[str, PublicName]:
    """All public names by their path, without modules and `__version__`."""
    found: dict[str, PublicName] = {}
    for module in dict.fromkeys(MODULES):
        for name in names_of(module):
            public = PublicName(module, name, getattr(import_module(module), name))
            found[public.path] = public
    return found


def names_of(module: str) -> list[str]:
    """What a module exports, functions and names that are written as functions first."""
    package = import_module(module)
    names = [
        name
        for name in package.__all__
        if not name.startswith("__") and not isinstance(getattr(package, name), ModuleType)
    ]
    return sorted(names, key=lambda name: (not name[0].islower(), name.isupper()))


@cache
def _first_paths() -> dict[int, str]:
    first: dict[int, str] = {}
    for path, public in public_names().items():
        if callable(public.value):
            first.setdefault(id(public.value), path)
    return first


def explained_as(value: object) -> str | None:
    """The path under which the reference explains a class or function; None if it does not."""
    return _first_paths().get(id(value))


@cache
def paths_of_name(name: str) -> tuple[str, ...]:
    """The paths of public names that end in this name, those that are explained first."""
    found = [path for path, public in public_names().items() if public.name == name]
    return tuple(
        sorted(found, key=lambda path: explained_as(public_names()[path].value) not in {path, None})
    )
