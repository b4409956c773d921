"""Whatever benchmarks, examples and the docs' scripts import from Manyhands is there.

They are not executed by the tests, so a name that was moved would be missed until they are.
"""

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from support import ROOT

SCRIPTS = [
    path.relative_to(ROOT)
    for folder in ("benchmarks", "docs", "examples")
    for path in sorted((ROOT / folder).rglob("*.py"))
]


def imported(path: Path) -> Iterator[tuple[str, str]]:
    """Modules of Manyhands and of the benchmarks, and the names that are taken from each."""
    for node in ast.walk(ast.parse((ROOT / path).read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            ours = node.module.partition(".")[0] in ("manyhands", "benchmarks")
            yield from ((node.module, alias.name) for alias in node.names if ours)


@pytest.mark.parametrize("path", SCRIPTS, ids=str)
def test_what_a_script_imports_is_there(path: Path) -> None:
    for module, name in imported(path):
        if module.startswith("benchmarks"):
            source = ROOT / Path(*module.split("."))
            assert source.is_dir() or source.with_suffix(".py").exists(), module
            continue
        found = import_module(module)
        assert hasattr(found, name) or import_module(f"{module}.{name}"), (module, name)
