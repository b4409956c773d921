"""Statements of cells: the names that each of them defines, changes and needs.

Nothing is executed here. Names of a function's body are needed when it is called, so they are kept
apart from those that a statement needs at once.
"""

from __future__ import annotations

import ast
import builtins
import re
import symtable
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_COMPREHENSIONS = {"listcomp", "setcomp", "dictcomp", "genexpr"}
_VERBS = ("manyhands.verbs.", "manyhands.lab.")
_SETTERS = ("setattr", "delattr")
_SETS = re.compile(
    r"(manual_)?seed|set|use_|enable|disable|register|add|append|insert|update|filterwarnings"
    r"|simplefilter|config|init"
)
"""Functions of modules that set something for the whole process, by their names."""
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Scope:
    """What names stand for: their values, and the functions among them that cells define."""

    values: Mapping[str, Any]
    definitions: Mapping[str, _Function]

    def value(self, node: ast.expr) -> object:
        """The function that an expression names: `f`, or `module.f`; None for others."""
        match node:
            case ast.Call(func=inner):
                return self.value(inner)
            case ast.Name(id=name):
                return self.values.get(name, getattr(builtins, name, None))
            case ast.Attribute(value=inner, attr=attribute):
                module = self.value(inner)
                return getattr(module, attribute, None) if isinstance(module, ModuleType) else None
        return None


@dataclass(frozen=True)
class Statement:
    """A statement at the top level of a cell."""

    text: str
    cell: int
    """The number of the cell's execution."""
    binds: frozenset[str]
    """Names that it defines anew, whatever they were before."""
    touches: frozenset[str]
    """Names that it defines, or whose objects it may change."""
    loads: frozenset[str]
    """Names that it needs when it is executed."""
    later: frozenset[str]
    """Names that functions in it need when they are called."""
    starts_run: bool
    """Whether it calls `train`, `simulate`, `compare` or the like."""
    registers: bool
    """Whether it registers a strategy by name."""
    awaits: bool
    """Whether it has an `await` outside of functions."""
    is_future: bool
    """Whether it is `from __future__ import …`."""


def parsed(cell: str) -> list[tuple[ast.stmt, str]]:
    """The statements of a cell, each with its text; none if it is not Python."""
    try:
        body = ast.parse(cell).body
    except (SyntaxError, ValueError):
        return []
    lines = cell.encode().splitlines(keepends=True)
    return [(node, _text(lines, node)) for node in body]


def _text(lines: list[bytes], node: ast.stmt) -> str:
    decorators = getattr(node, "decorator_list", [])
    first, column = (decorators[0].lineno, 0) if decorators else (node.lineno, node.col_offset)
    last, end = node.end_lineno or first, node.end_col_offset or 0
    if first == last:
        return lines[first - 1][column:end].decode()
    middle = b"".join(lines[first : last - 1])
    return (lines[first - 1][column:] + middle + lines[last - 1][:end]).decode()


def statement(node: ast.stmt, text: str, cell: int, scope: Scope) -> Statement:
    """What a statement does.

    Args:
        node: the statement.
        text: its text.
        cell: the number of the cell's execution.
        scope: what names stand for.
    """
    loads, later = set[str](), set[str]()
    table = symtable.symtable(text, "<cell>", "exec")
    touched = {
        symbol.get_name()
        for symbol in table.get_symbols()
        if symbol.is_assigned() or symbol.is_imported()
    }
    _look_up(table, loads, later)
    if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
        touched |= _public(node.module or "")
    if isinstance(node, ast.AugAssign):
        loads |= _owner(node.target)
    calls = [call.func for call in _within(node) if isinstance(call, ast.Call)]
    functions = [scope.value(each) for each in (*calls, *getattr(node, "decorator_list", ()))]
    starts_run = any(_module(one).startswith(_VERBS) for one in functions)
    changed = _changed(node, scope)
    if starts_run:
        changed = {x for x in changed if not isinstance(scope.values.get(x), ModuleType)}
    return Statement(
        text=text,
        cell=cell,
        binds=frozenset(_bound(node)),
        touches=frozenset(touched | changed),
        loads=frozenset(loads),
        later=frozenset(later),
        starts_run=starts_run,
        registers=any(map(_is_register, functions)),
        awaits=any(isinstance(each, ast.Await) for each in _within(node)),
        is_future=isinstance(node, ast.ImportFrom) and node.module == "__future__",
    )


def _look_up(table: symtable.SymbolTable, loads: set[str], later: set[str]) -> None:
    """Collect the global names that are looked up at once, and those of functions."""
    is_top = table.get_type() == "module"
    for symbol in table.get_symbols():
        if is_top or symbol.is_global():
            if symbol.is_referenced():
                loads.add(symbol.get_name())
            if not is_top and symbol.is_assigned():
                later.add(symbol.get_name())
    for child in table.get_children():
        deferred = child.get_type() == "function" and child.get_name() not in _COMPREHENSIONS
        _look_up(child, later if deferred else loads, later)


def _public(module: str) -> set[str]:
    """The names that `from module import *` defines."""
    found = vars(sys.modules[module]) if module in sys.modules else {}
    return set(found.get("__all__", [name for name in found if not name.startswith("_")]))


def _bound(node: ast.stmt) -> set[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Assign(targets=targets) if all(map(_is_plain, targets)):
            return set[str]().union(*map(_owner, targets))
        case ast.AnnAssign(target=ast.Name(id=name), value=value) if value is not None:
            return {name}
    # Not of imports: `import a.b` and `import a` define one name together.
    return set()


def _is_plain(target: ast.expr) -> bool:
    if isinstance(target, (ast.Tuple, ast.List)):
        return all(map(_is_plain, target.elts))
    return isinstance(target, ast.Name)


def _within(node: ast.AST) -> Iterator[ast.AST]:
    """The node and those in it that are executed with it: not those in functions."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        yield from _within(child)


def _changed(node: ast.AST, scope: Scope) -> set[str]:
    """The names whose objects are changed: `x.y = 1`, `x[0] = 1`, `x += 1`, `x.add(1)`, `f(x)`."""
    found = set[str]()
    for each in getattr(node, "decorator_list", ()):
        call = each if isinstance(each, ast.Call) else ast.Call(each, [], [])
        found |= _called(call, scope)
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return found
    for child in _within(node):
        match child:
            case (
                ast.Attribute(ctx=ast.Store() | ast.Del())
                | ast.Subscript(ctx=ast.Store() | ast.Del())
            ):
                found |= _owner(child)
            case ast.AugAssign(target=target):
                found |= _owner(target)
            case (
                ast.Expr(value=ast.Call() as call)
                | ast.Expr(value=ast.Await(value=ast.Call() as call))
            ):
                found |= _called(call, scope)
    return found


def _called(call: ast.Call, scope: Scope) -> set[str]:
    """The names whose objects a call may change, if its result is not used."""
    function = scope.value(call.func)
    of_arguments = [*call.args, *(word.value for word in call.keywords)]
    if _module(function).startswith("manyhands"):
        return set()
    match call.func:
        case ast.Name(id=name) if getattr(builtins, name, None) is function is not None:
            return _owner(call.args[0]) if name in _SETTERS and call.args else set()
        case ast.Name(id=name):
            if name not in scope.definitions:
                return set[str]().union(*map(_owner, of_arguments))
            return _changed_by(scope.definitions[name], call)
        case ast.Attribute(value=inner, attr=attribute):
            found = _owner(inner)
            if any(isinstance(scope.values.get(name), ModuleType) for name in found):
                # Most functions of modules change nothing that another process would miss.
                found = found if _SETS.match(attribute) else set()
            in_place = attribute.endswith("_") or attribute == "shuffle"
            return found.union(*map(_owner, of_arguments)) if in_place else found
    return set()


def _changed_by(definition: _Function, call: ast.Call) -> set[str]:
    """The names that a call of a function changes: global ones, and those given to it.

    Functions that it calls itself are not looked at.
    """
    places = [each.arg for each in (*definition.args.posonlyargs, *definition.args.args)]
    given = dict(zip(places, call.args, strict=False))
    given |= {word.arg: word.value for word in call.keywords if word.arg is not None}
    found = set[str]().union(*(_changed(part, Scope({}, {})) for part in definition.body))
    loads, later = set[str](), set[str]()
    _look_up(symtable.symtable(ast.unparse(definition), "<cell>", "exec"), loads, later)
    declared = (each.names for each in ast.walk(definition) if isinstance(each, ast.Global))
    changed = (found & later).union(*declared)
    return changed.union(*(_owner(value) for name, value in given.items() if name in found))


def _owner(node: ast.expr) -> set[str]:
    """The names at the left of attributes and items: of `a.b[0].c`, a."""
    match node:
        case ast.Name(id=name):
            return {name}
        case ast.Attribute(value=inner) | ast.Subscript(value=inner) | ast.Starred(value=inner):
            return _owner(inner)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return set[str]().union(*map(_owner, parts))
    return set()


def _module(function: object) -> str:
    found = getattr(function, "__module__", None)
    return found if isinstance(found, str) else ""


def _is_register(function: object) -> bool:
    named = getattr(function, "__name__", "") == "register"
    return named and _module(function).startswith("manyhands.")
