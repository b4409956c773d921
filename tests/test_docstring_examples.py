"""Every example in a docstring is executed."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import manyhands

SOURCE = Path(manyhands.__file__).parent
WITH_EXAMPLES = [
    path.relative_to(SOURCE.parent).with_suffix("")
    for path in sorted(SOURCE.rglob("*.py"))
    if ">>>" in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=str)
def test_examples_of_a_module_are_true(path: Path) -> None:
    module = import_module(".".join(path.parts).removesuffix(".__init__"))
    assert doctest.testmod(module).failed == 0
