"""Every example in a docstring is executed, and everything public has one."""

import doctest
import inspect
import pydoc
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType

import pytest

import manyhands

SOURCE = Path(manyhands.__file__).parent
WITH_EXAMPLES = [
    path.relative_to(SOURCE.parent).with_suffix("")
    for path in sorted(SOURCE.rglob("*.py"))
    if ">>>" in path.read_text(encoding="utf-8")
]
PUBLIC = {
    name: value
    for name in manyhands.__all__
    if inspect.isclass(value := getattr(manyhands, name))
    or inspect.isroutine(value)
    or isinstance(value, ModuleType)
}
"""Without the aliases, which have no docstrings of their own."""
METHODS = {
    f"{name}.{method}": member
    for name in ("Cluster", "Compared", "Job", "Run", "Target", "Trainer")
    for method, member in vars(PUBLIC[name]).items()
    if not method.startswith("_")
    and isinstance(member, FunctionType | classmethod | property | cached_property)
}


@pytest.mark.usefixtures("forgets_names")
@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=str)
def test_examples_of_a_module_are_true(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = import_module(".".join(path.parts).removesuffix(".__init__"))
    monkeypatch.chdir(tmp_path)  # runs leave their folders there
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("name", PUBLIC)
def test_everything_public_has_a_summary_and_an_example(name: str) -> None:
    text = inspect.getdoc(PUBLIC[name]) or ""
    summary, _, rest = text.partition("\n")
    assert summary.endswith("."), summary
    assert not rest.strip() or rest.startswith("\n"), "a blank line follows the summary"
    assert doctest.DocTestParser().get_examples(text), f"{name} has no example"


@pytest.mark.parametrize("name", METHODS)
def test_every_public_method_has_a_docstring(name: str) -> None:
    member = METHODS[name]
    text = inspect.getdoc(member) or ""
    assert text.partition("\n")[0].endswith("."), text
    if isinstance(member, FunctionType) and len(inspect.signature(member).parameters) > 1:
        assert "Args:" in text, name


@pytest.mark.parametrize("name", ["train", "simulate", "compare", "strategy", "register"])
def test_a_function_explains_every_argument_its_result_and_its_errors(name: str) -> None:
    text = inspect.getdoc(PUBLIC[name]) or ""
    for section in ("Args:", "Returns:", "Raises:", "Example:"):
        assert f"\n{section}\n" in text, section
    for argument in inspect.signature(PUBLIC[name]).parameters:
        assert f"\n    {argument}: " in text, f"{name}({argument}=)"


def test_the_methods_were_found() -> None:
    assert {
        "Cluster.local",
        "Cluster.cores",
        "Compared.summary",
        "Job.budget",
        "Run.metrics",
        "Run.state_dict",
        "Run.trace",
        "Trainer.batches",
        "Trainer.step",
    } <= set(METHODS)


def test_help_on_the_package_is_a_table_of_contents() -> None:
    text = manyhands.__doc__ or ""
    lines = [line.split() for line in text.splitlines() if line.startswith("    ")]
    listed = {words[0] for words in lines}
    assert {
        "train",
        "simulate",
        "compare",
        "strategy",
        *(name for name, value in PUBLIC.items() if isinstance(value, ModuleType)),
    } <= listed
    assert {"Job", "Run", "Cluster", "Trainer", "Refused", "RunFailed"} <= listed
    assert listed - set(manyhands.__all__) == {"import"}
    shown = pydoc.plain(pydoc.render_doc(manyhands))
    assert all(line in shown for line in text.splitlines())
