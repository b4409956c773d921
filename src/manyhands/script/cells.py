"""Cells of a notebook or of IPython as a script that workers execute.

Workers do not execute all cells again: only the statements that the job needs, in the order in
which they were executed. A statement is needed if it defines, or may change, a name that the job
or another needed statement uses. So neither a plot nor an earlier run is repeated in a worker.

The statements are those of IPython's history. The statement that is being executed, those after it,
and those at and after an error are left out.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import os
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyhands.script.statements import Scope, Statement, parsed, statement

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from types import FrameType, TracebackType

_MAGIC = "get_ipython"
_TRANSPARENT = {"time", "capture"}
"""Magics that execute the statements that they are given."""
_HEAD = "# What the job of a notebook needs, from its cells in the order of their execution.\n"

_failures: dict[int, tuple[int, ...]] = {}
"""By number of a cell's execution, the lines at which it failed, as `Executed.until`."""


def shell() -> Any | None:
    """The IPython shell of this process; None if it has none. IPython is never imported here."""
    ipython = sys.modules.get("IPython")
    get = getattr(ipython, "get_ipython", None)
    return get() if get is not None else None


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook, not a terminal."""
    return hasattr(shell(), "kernel")


def watch() -> None:
    """Note which cells fail from now on: their statements are not executed by workers."""
    running = shell()
    if running is not None and hasattr(running, "events"):
        running.events.register("post_run_cell", _note)


def _note(result: Any) -> None:
    number, error = result.execution_count, result.error_in_exec
    if number is not None and error is not None:
        _failures[number] = tuple(_failed_lines(error.__traceback__)) or (1,)


def _failed_lines(trace: TracebackType | None) -> Iterator[int]:
    names = getattr(shell(), "user_ns", None)
    while trace is not None:
        if _is_top_level(trace.tb_frame, names):
            yield trace.tb_lineno
        trace = trace.tb_next


def _is_top_level(frame: FrameType, names: object) -> bool:
    """Whether a frame executes statements of a cell, or of a magic, outside of functions."""
    name = frame.f_code.co_name
    return frame.f_globals is names and (name == "<module>" or name.startswith("<cell line"))


@dataclass(frozen=True)
class Executed:
    """A cell that was executed, or is being executed."""

    number: int
    text: str
    until: tuple[int, ...] = ()
    """The line that is being executed, or that failed; in a magic, also the line in its body."""


def history(running: Any, frame: FrameType | None) -> list[Executed]:
    """The cells of a shell's session.

    Args:
        running: the shell.
        frame: the frame of a call in the cell that is being executed, if there is one.
    """
    cells = list(running.history_manager.input_hist_parsed)
    current = running.execution_count
    found = []
    for number, text in enumerate(cells):
        until: tuple[int, ...] = ()
        if number == current:
            until = _current_lines(frame, running.user_ns)
        elif number in _failures:
            until = _failures[number]
        if text.strip():
            found.append(Executed(number, text, until))
    return found


def _current_lines(frame: FrameType | None, names: Mapping[str, Any]) -> tuple[int, ...]:
    """The lines that the cell, and magics in it, execute at the top level, the outermost first."""
    found = []
    while frame is not None:
        if _is_top_level(frame, names):
            found.append(frame.f_lineno)
        frame = frame.f_back
    return tuple(reversed(found))


def script(cells: Iterable[Executed], names: Mapping[str, Any], roots: Sequence[str]) -> str:
    """The statements of cells that define these names, as the text of a script.

    Args:
        cells: the cells in the order of their execution.
        names: the values of names at the end.
        roots: names that the script must define, the job's first.

    Raises:
        ValueError: a statement that is needed cannot be executed by a worker.
    """
    nodes = [found for cell in cells for found in _statements(cell.text, cell.number, cell.until)]
    functions = {
        node.name: node
        for node, _, _ in nodes
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    scope = Scope(names, functions)
    steps = []
    for node, text, number in nodes:
        with contextlib.suppress(SyntaxError):  # IPython has refused it, too
            steps.append(statement(node, text, number, scope))
    chosen, unknown = needed(steps, roots)
    _check(chosen, unknown & {*names}, roots[0])
    future = [step.text for step in steps if step.is_future]
    return "\n".join(
        [_HEAD, *dict.fromkeys(future), *_paths(), *(step.text for step in chosen), ""]
    )


def _statements(
    text: str, number: int, until: Sequence[int]
) -> Iterator[tuple[ast.stmt, str, int]]:
    """The statements of a cell that were executed, also those in the body of a magic."""
    for node, own in parsed(text):
        last = until[0] if until else sys.maxsize
        if node.lineno > last:
            return
        is_current = (node.end_lineno or node.lineno) >= last
        body = _body(node)
        if body is not None:
            yield from _statements(body, number, (until[1:] or (0,)) if is_current else ())
        elif not is_current:
            yield node, own, number
        if is_current:
            return


def _body(node: ast.stmt) -> str | None:
    """The statements that a magic such as `%%time` executes; None for other statements."""
    match node:
        case ast.Expr(
            value=ast.Call(
                func=ast.Attribute(value=ast.Call(func=ast.Name(id="get_ipython")), attr=kind),
                args=[ast.Constant(value=str(name)), *_, ast.Constant(value=str(body))],
            )
        ) if kind in ("run_cell_magic", "run_line_magic") and name in _TRANSPARENT:
            return body
    return None


def needed(steps: Sequence[Statement], roots: Iterable[str]) -> tuple[list[Statement], set[str]]:
    """The statements that define these names, in their order, and the names that remain unknown.

    What functions look up when they are called may have been defined after them, and at any time:
    all definitions of such names are taken. Of others, those that are not overwritten.
    """
    later = set[str]()
    while True:
        live, chosen = {*roots, *later}, list[Statement]()
        for step in reversed(steps):
            if step.registers or (step.binds | step.touches) & live:
                chosen.append(step)
                live -= step.binds - later
                live |= step.loads
        more = set[str]().union(*(step.later for step in chosen)) - later
        if not more:
            break
        later |= more
    defined = set[str]().union(*(step.binds | step.touches for step in chosen))
    # A function may never be called, so what it alone looks up may be unknown.
    at_once = set[str](roots).union(*(step.loads for step in chosen))
    return chosen[::-1], (live & at_once) - defined - {*vars(builtins)} | ({_MAGIC} & at_once)


def _check(chosen: Iterable[Statement], unknown: set[str], job: str) -> None:
    """Raise ValueError, with the fix, if a worker cannot execute the statements."""
    whose = f"the job {job!r}"
    for step in chosen:
        line = step.text.partition("\n")[0]
        where = f"{line!r} in cell {step.cell}"
        if step.starts_run:
            raise ValueError(
                f"{whose} needs the result of {where}, which starts a run, and workers would "
                "start it again: store what the job needs in a file, and read it in another cell"
            )
        if _MAGIC in step.loads:
            raise ValueError(
                f"{whose} needs {where}, a magic or a shell command, and workers are plain "
                "Python: write it in Python"
            )
        if step.awaits:
            raise ValueError(
                f"{whose} needs {where}, which awaits: a worker's script cannot; use asyncio.run "
                "in a function"
            )
    if unknown:
        raise ValueError(
            f"{whose} needs {', '.join(sorted(map(repr, unknown)))}, and no cell of this session "
            "defines it: workers execute cells, not %run, %load_ext or the output history. "
            "Define it in a cell, or import it from a file"
        )


def _paths() -> list[str]:
    """The statement that makes a worker find modules in folders that a cell added to the path.

    The current folder and those of PYTHONPATH are known to every process.
    """
    known = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    known += tuple(str(Path(entry).resolve()) for entry in inherited if entry)
    folders = dict.fromkeys(str(Path(entry).resolve()) for entry in sys.path)
    added = [
        entry
        for entry in folders
        if Path(entry).is_dir() and entry != str(Path.cwd()) and not entry.startswith(known)
    ]
    return [f"import sys\n\nsys.path[:0] = {added!r}\n"] if added else []
