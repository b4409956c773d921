"""The command that runs a seed again, and how it finds a protocol and its laws by name."""

from __future__ import annotations

import inspect
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyhands.notation import Catalog, NotationError
from manyhands.protocols import ALL
from manyhands.script.loading import MODULE, execute
from manyhands.strategies import strategy
from manyhands.strategies.kinds import protocol_class_of, protocol_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from manyhands.protocols import StrategyProtocol
    from manyhands.testing.laws.law import Law

_PACKAGE = str(Path(__file__).parent.parent)


def replay_command(
    protocol: object,
    seed: int,
    laws: Sequence[type[Law]],
    without: Sequence[type[Law]],
    reference: object,
    workers: tuple[int, int],
    *,
    faults: bool,
) -> str:
    """A command line that runs the seed again, or what to call if a part of it has no name.

    Example:
        >>> replay_command("ssp()", 17, (), (), None, (2, 6), faults=True)
        "python -m manyhands.testing --strategy 'ssp()' --seed 17"
    """
    try:
        words = _protocol_words(protocol)
        for option, named in (("--law", laws), ("--without", without)):
            for law in named:
                words = [*_with_script(words, law), option, law.__name__]
        if reference is not None:
            name = getattr(reference, "__name__", "")
            words = [*_with_script(words, reference), "--reference", name]
    except LookupError as error:
        return f"check(…, first={seed}, seeds=1) with the same arguments: {error.args[0]}"
    if workers != (2, 6):
        words += ["--workers", f"{workers[0]},{workers[1]}"]
    if not faults:
        words.append("--no-faults")
    return shlex.join(["python", "-m", "manyhands.testing", *words, "--seed", str(seed)])


def _protocol_words(protocol: object) -> list[str]:
    """The arguments that name a protocol."""
    if isinstance(protocol, str):
        protocol = strategy(protocol)
    made = protocol_class_of(protocol)
    if made is not None:
        file = _file_of(made)
        _name_in(file, made)
        return _at(file, made.name + "()")
    if protocol_of(protocol) is None:
        file = _file_of(protocol)
        return [f"{_shown(file)}:{_name_in(file, protocol)}"]
    file = _file_of(type(protocol))
    if _is_own(file):
        _name_in(file, type(protocol))
    return _at(file, str(protocol))


def _at(file: Path, text: str) -> list[str]:
    return [*([_shown(file)] if _is_own(file) else []), "--strategy", text]


def _with_script(words: list[str], thing: object) -> list[str]:
    """The arguments, with the script that has a law or a reference at its top level."""
    file = _file_of(thing)
    if not _is_own(file):
        return words
    name, script = _name_in(file, thing), _shown(file)
    if words[0].startswith("--"):
        return [script, *words]
    if words[0].partition(":")[0] != script:
        raise LookupError(f"{name} is not in the file of the protocol")
    return words


def _is_own(file: Path) -> bool:
    """Whether a file is the user's, and not one of Manyhands."""
    return not str(file).startswith(_PACKAGE + os.sep)


def _file_of(thing: Any) -> Path:
    try:
        return Path(inspect.getfile(thing)).resolve()
    except (TypeError, OSError):
        raise LookupError(f"{thing!r} is not defined in a file") from None


def _name_in(file: Path, thing: Any) -> str:
    """The name of a class or a function at the top level of its file."""
    name = str(getattr(thing, "__qualname__", ""))
    if not name.isidentifier():
        raise LookupError(f"{name or thing!r} is not at the top level of {file.name}")
    return name


def _shown(file: Path) -> str:
    """The path relative to the current folder, if that is above it."""
    try:
        return str(file.relative_to(Path.cwd()))
    except ValueError:
        return str(file)


def load_script(path: Path) -> ModuleType:
    """Execute a script up to its main guard, as `manyhands` does.

    Raises:
        ValueError: there is no such file.
    """
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    sys.path.insert(0, str(path.resolve().parent))
    return execute(path.resolve(), MODULE)


def find_protocol(module: ModuleType | None, text: str | None, name: str | None) -> Any:
    """The protocol that a command line names.

    Args:
        module: the script, if there is one.
        text: a strategy as text, or the name of an object of the script.
        name: the name of an object of the script.

    Raises:
        ValueError: there is none, or the text is not a strategy; the message says what there is.
        TypeError: a class cannot be written as text.
    """
    own = {} if module is None else _own_protocols(module)
    wanted = name or text
    if wanted is None:
        if len(own) == 1:
            return next(iter(own.values()))
        raise ValueError(
            f"name a protocol with --strategy or as file.py:NAME; the script has "
            f"{', '.join(own) or 'none'}"
        )
    if module is not None and wanted.isidentifier() and hasattr(module, wanted):
        return getattr(module, wanted)
    if name is not None:
        raise ValueError(f"the script has no object {name!r} at its top level")
    classes: dict[str, type[StrategyProtocol]] = {made.name: made for made in ALL}
    for thing in own.values():
        made = protocol_class_of(thing)
        if made is not None:
            classes[made.name] = made
    try:
        return Catalog(kind="strategy", classes=tuple(classes.values())).read(wanted)
    except NotationError:
        return strategy(wanted)  # of an installed package, or none: then it says so


def _own_protocols(module: ModuleType) -> dict[str, Any]:
    """The protocols, as classes or objects, that a script defines at its top level."""
    found = {}
    for name, thing in vars(module).items():
        made = protocol_class_of(thing)
        if made is not None:
            if made.__module__ == module.__name__ and not inspect.isabstract(made):
                found[name] = thing
        elif protocol_of(thing) is not None:
            found[name] = thing
    return found
