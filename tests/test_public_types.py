"""Every type that occurs in a public signature is exported: a user can name what an editor shows.

Annotations are read from the source, as editors and type checkers read them: most of them are
imported for type checking only.
"""

import ast
import inspect
import typing
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import manyhands

SOURCE = Path(manyhands.__file__).parent
INTERNAL = {"Trainer.__init__", "Trainer.finish", "Trainer.averaged", "Run.__init__"}
"""What the runtime calls, and no user."""
PUBLIC = {name: getattr(manyhands, name) for name in manyhands.__all__ if name != "__version__"}
MODULES = {name: value for name, value in PUBLIC.items() if isinstance(value, ModuleType)}
CALLED = {name: value for name, value in PUBLIC.items() if inspect.isroutine(value)}
CLASSES = {name: value for name, value in PUBLIC.items() if inspect.isclass(value)}
EXPORTED = {
    *manyhands.__all__,
    *(name for module in MODULES.values() for name in module.__all__),
}
"""By the package itself, or by a module that it exports, as `mh.trace.Span`."""


@cache
def parsed(module: str) -> ast.Module:
    return ast.parse(Path(str(import_module(module).__file__)).read_text(encoding="utf-8"))


@cache
def own_names(module: str) -> frozenset[str]:
    """The names in a module that are Manyhands': its own, and what it imports from the others."""
    found = set()
    for node in ast.walk(parsed(module)):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("manyhands"):
            found |= {alias.asname or alias.name for alias in node.names}
    for node in parsed(module).body:
        if isinstance(node, ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.AnnAssign) and "TypeAlias" in ast.unparse(node.annotation):
            found.add(ast.unparse(node.target))
    return frozenset(found)


def names(annotation: ast.AST) -> Iterator[str]:
    match annotation:
        case ast.Subscript(value=ast.Name(id="Literal")):
            return  # what it holds are values
        case ast.Name(id=name):
            yield name
        case ast.Constant(value=str(text)):
            yield from names(ast.parse(text, mode="eval").body)
    for child in ast.iter_child_nodes(annotation):
        yield from names(child)


def of_function(node: ast.FunctionDef) -> Iterator[ast.expr]:
    arguments = node.args
    for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        if each.annotation is not None:
            yield each.annotation
    if node.returns is not None:
        yield node.returns


def signatures(name: str, value: object) -> Iterator[tuple[str, ast.expr]]:
    """The annotations of a function, or of the fields and the public methods of a class."""
    module = parsed(str(getattr(value, "__module__", "")))
    (node,) = (
        node
        for node in module.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == value.__name__
    )
    if isinstance(node, ast.FunctionDef):
        yield from ((name, annotation) for annotation in of_function(node))
        return
    for base in getattr(value, "__bases__", ()):
        if base.__module__.startswith(value.__module__.rpartition(".")[0]):
            yield from signatures(name, base)
    for member in node.body:
        if isinstance(member, ast.FunctionDef):
            where = f"{name}.{member.name}"
            public = member.name == "__init__" or not member.name.startswith("_")
            if public and where not in INTERNAL:
                yield from ((where, annotation) for annotation in of_function(member))
        elif isinstance(member, ast.AnnAssign):
            field = ast.unparse(member.target)
            if not field.startswith("_"):
                yield f"{name}.{field}", member.annotation


@pytest.mark.parametrize("name", [*CALLED, *CLASSES])
def test_every_type_in_a_public_signature_is_exported(name: str) -> None:
    value = PUBLIC[name]
    modules = [one.__module__ for one in getattr(value, "__mro__", (value,))]
    own = frozenset().union(*(own_names(one) for one in modules if one.startswith("manyhands.")))
    missing = {
        f"{where}: {used}"
        for where, annotation in signatures(name, value)
        for used in names(annotation)
        if used in own and not used.startswith("_") and used not in EXPORTED
    }
    assert missing == set()


def test_the_walk_sees_signatures_fields_and_methods() -> None:
    seen = {
        f"{where}: {used}"
        for name in ("train", "Job", "Run", "Compared", "Trainer")
        for where, annotation in signatures(name, PUBLIC[name])
        for used in names(annotation)
    }
    assert {
        "train: Strategy",
        "train: Cluster",
        "Job.data: SizedData",
        "Job.goal: Target",
        "Run.trace: Trace",
        "Compared.results: Comparison",
        "Trainer.batches: Batch",
    } <= seen


def test_what_is_exported_is_a_function_a_class_a_module_or_an_alias() -> None:
    aliases = set(PUBLIC) - set(CALLED) - set(CLASSES) - set(MODULES)
    assert aliases == {"Durability", "Loss", "Objective", "Strategy"}
    for name in aliases:
        assert typing.get_origin(PUBLIC[name]) or typing.get_args(PUBLIC[name]), name


@pytest.mark.parametrize("name", MODULES)
def test_a_public_module_lists_what_it_has(name: str) -> None:
    module = MODULES[name]
    assert module.__doc__
    for each in module.__all__:
        assert hasattr(module, each), f"{name}.{each}"
