"""The structure of the source: one name has one meaning, and folders stay small."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import manyhands
from manyhands.strategies import CATALOG

SOURCE = Path(manyhands.__file__).parent
MOST_FILES = 15
LISTS = {"cli", "models", "placements", "protocols"}
"""Folders with one file per subcommand, model or strategy."""


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield path.relative_to(SOURCE), ast.parse(path.read_text(encoding="utf-8"))


def test_a_public_class_name_has_one_meaning() -> None:
    found = defaultdict(list)
    for path, tree in modules():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_only_strategies_asks_which_kind_a_strategy_is() -> None:
    kinds = {"Placement", "StrategyProtocol", "Strategy"}
    kinds |= {
        type(CATALOG.read(f"{name}()")).__name__ for name in CATALOG.names() if name != "place"
    }
    asked = []
    for path, tree in modules():
        if path.parts[0] in {"strategies", "protocols", "placements"}:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {
                "isinstance",
                "issubclass",
            }:
                named = {one.id for one in ast.walk(node.args[1]) if isinstance(one, ast.Name)}
                asked += [f"{path}:{node.lineno}" for _ in named & kinds]
    assert asked == []


def test_no_folder_is_crowded() -> None:
    crowded = {}
    for folder in (SOURCE, *(path for path in SOURCE.rglob("*") if path.is_dir())):
        files = [*folder.glob("*.py")]
        if len(files) > MOST_FILES and folder.name not in LISTS:
            crowded[str(folder.relative_to(SOURCE))] = len(files)
    assert crowded == {}


def test_every_folder_says_what_is_in_it() -> None:
    for path, tree in modules():
        assert ast.get_docstring(tree) or path.name == "__main__.py", path


def length(path: Path) -> int:
    """The lines of a file without comments: a reason beside a line makes no file too long."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return sum(not line.lstrip().startswith("#") for line in lines)


def test_no_file_is_longer_than_a_few_pages() -> None:
    lengths = {str(path.relative_to(SOURCE)): length(path) for path in SOURCE.rglob("*.py")}
    assert {name: lines for name, lines in lengths.items() if lines > 520} == {}
