"""Which statements of executed cells a job needs."""

import math
import sys
import textwrap
import types

import pytest

import manyhands as mh
from manyhands.script.cells import Executed, script

NAMES = {"mh": mh, "math": math, "sys": sys}


def taken(
    *cells: str, root: str = "job", until: tuple[int, ...] = (), **names: object
) -> list[str]:
    """The lines of the script of these cells; `until` is the line of the last one."""
    executed = [
        Executed(number, textwrap.dedent(text), until if number == len(cells) else ())
        for number, text in enumerate(cells, 1)
    ]
    text = script(executed, {**NAMES, **names}, [root])
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [line for line in lines if "sys" not in line]


def test_what_the_job_uses_is_taken_and_nothing_else() -> None:
    assert taken("a = 1", "b = 2", "c = a", "job = c", "plot(b)") == ["a = 1", "c = a", "job = c"]


def test_only_the_last_definition_is_taken_unless_it_uses_the_one_before() -> None:
    assert taken("a = 1", "a = 2", "job = a") == ["a = 2", "job = a"]
    assert taken("a = 1", "a = a + 1", "job = a") == ["a = 1", "a = a + 1", "job = a"]
    assert taken("a = 1", "a += 1", "job = a") == ["a = 1", "a += 1", "job = a"]


def test_a_use_in_between_keeps_the_definition_before() -> None:
    cells = ("a = 1", "b = a", "a = 2", "job = (a, b)")
    assert taken(*cells) == [*cells]


def test_what_a_function_looks_up_may_be_defined_after_it() -> None:
    cells = ("def make(): return width", "width = 3", "job = make")
    assert taken(*cells) == [*cells]
    assert taken("job = lambda: width", "width = 1", "width = 2") == [
        "job = lambda: width",
        "width = 1",
        "width = 2",
    ]


def test_local_names_of_a_function_are_not_looked_up() -> None:
    cells = ("run = 1", "def make():\n    run = 2\n    return run", "job = make")
    assert "run = 1" not in taken(*cells)


@pytest.mark.parametrize(
    "change",
    [
        "a.append(2)",
        "a[0] = 3",
        "a.b.c = 3",
        "del a[0]",
        "for x in y: a.append(x)",
        "random.shuffle(a)",
        "setattr(a, 'b', 1)",
        "unknown(a)",
        "if y: a = 3",
    ],
)
def test_what_changes_an_object_that_is_needed_is_taken(change: str) -> None:
    assert change in taken("y = [1]", "a = [1]", change, "job = a")


@pytest.mark.parametrize("use", ["a", "print(a)", "b = f(a)", "plt.imshow(a)", "a[0]", "len(a)"])
def test_what_only_looks_at_it_is_not(use: str) -> None:
    assert taken("a = [1]", use, "job = a", plt=types.ModuleType("plt")) == ["a = [1]", "job = a"]


def test_a_function_of_a_cell_is_read_for_what_it_changes() -> None:
    add = "def add(one, items):\n    items.append(one)"
    look = "def look(items):\n    for x in items: print(x)"
    keep = "def keep(cls):\n    KNOWN[cls] = cls\n    return cls"
    assert taken("a = []", "b = []", add, "add(b, a)", "job = a")[-2:] == ["add(b, a)", "job = a"]
    assert taken("a = []", "b = []", add, "add(a, b)", "job = a") == ["a = []", "job = a"]
    assert taken("a = []", look, "look(a)", "job = a") == ["a = []", "job = a"]
    assert "class Net: pass" in taken("KNOWN = {}", keep, "@keep\nclass Net: pass", "job = KNOWN")


def test_seeds_are_set_as_they_were() -> None:
    numpy = types.ModuleType("numpy")
    cells = ("import numpy as np", "np.random.seed(0)", "x = np.random.rand(3)", "job = x")
    assert taken(*cells, "np.savetxt('x', x)", np=numpy) == [*cells]


def test_runs_are_not_made_again() -> None:
    assert taken("import manyhands as mh", "job = 1", "mh.train(job)", "r = mh.simulate(job)") == [
        "job = 1"
    ]


def test_a_job_that_needs_a_run_is_refused() -> None:
    words = r"needs the result of 'run = mh.train\(first\)' in cell 2, which starts a run.*a file"
    with pytest.raises(ValueError, match=words):
        taken("first = 1", "run = mh.train(first)", "job = run")


def test_a_job_that_needs_a_magic_is_refused() -> None:
    magic = "files = get_ipython().getoutput('ls')"
    with pytest.raises(ValueError, match=r"a magic or a shell command.*write it in Python"):
        taken(magic, "job = files", get_ipython=None, files=[])
    assert taken("get_ipython().system('ls')", "job = 1", get_ipython=None) == ["job = 1"]


def test_a_job_that_needs_an_await_is_refused() -> None:
    with pytest.raises(ValueError, match=r"which awaits: .*asyncio\.run"):
        taken("a = await f()", "job = a")


def test_a_job_that_no_cell_defines_is_refused() -> None:
    with pytest.raises(ValueError, match="needs 'job', and no cell of this session defines it"):
        taken("get_ipython().run_line_magic('run', 'x.py')", job=1, get_ipython=None)
    with pytest.raises(ValueError, match="needs 'width', and no cell of this session defines it"):
        taken("job = width", width=3)


def test_builtins_and_names_that_only_a_function_uses_may_be_unknown() -> None:
    assert taken("job = lambda: display(len(x))") == ["job = lambda: display(len(x))"]
    assert taken("job = range(3)") == ["job = range(3)"]


def test_what_is_being_executed_and_what_follows_is_left_out() -> None:
    cell = "a = 1\njob = a\nrun = mh.train(\n    job,\n)\nb = job\n"
    assert taken(cell, until=(3,)) == ["a = 1", "job = a"]
    assert taken(cell, until=(4,)) == ["a = 1", "job = a"]


@pytest.mark.parametrize("magic", ["run_cell_magic('time', '', {})", "run_line_magic('time', {})"])
def test_statements_within_a_magic_that_executes_them_are_taken(magic: str) -> None:
    body = "a = 1; job = a"
    text = f"get_ipython().{magic.format(repr(body))}"
    assert taken(text, get_ipython=None) == ["a = 1", "job = a"]
    assert taken("job = 2", text, until=(1, 0), get_ipython=None) == ["job = 2"]
    lines = "a = 1\njob = a\nf(job)"
    multi = f"get_ipython().run_cell_magic('time', '', {lines!r})"
    assert taken(multi, until=(1, 3), get_ipython=None) == ["a = 1", "job = a"]


def test_imports_of_one_package_are_all_taken() -> None:
    cells = ("import os.path", "import os", "job = os")
    assert taken(*cells) == [*cells]
    assert taken("from math import *", "job = pi") == ["from math import *", "job = pi"]


def test_future_imports_come_first() -> None:
    lines = taken("a = 1", "from __future__ import annotations", "job = a")
    assert lines == ["from __future__ import annotations", "a = 1", "job = a"]


def test_strategies_that_cells_register_are_known_to_workers() -> None:
    cells = ("import manyhands as mh", "@mh.register\nclass Mine: pass", "job = 1")
    assert taken(*cells) == [
        "import manyhands as mh",
        "@mh.register",
        "class Mine: pass",
        "job = 1",
    ]


def test_texts_are_those_of_the_cells() -> None:
    cell = "a = 'é'; b = 2  # two\n@f\ndef g(\n    x,\n):\n    return a\njob = (g,\n  b)\n"
    assert taken("f = 1", cell) == [
        "f = 1", "a = 'é'", "b = 2", "@f", "def g(", "    x,", "):", "    return a",
        "job = (g,", "  b)",
    ]  # fmt: skip


def test_what_is_not_python_is_left_out() -> None:
    assert taken("this is not", "job = 1", "return 3") == ["job = 1"]
