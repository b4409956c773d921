"""The site: everything public is in the reference, as `help` has it, and every page has a place.

CI builds the site from the same sources and follows its links (`docs/check_site.py`).
"""

import doctest
import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import typer
from docs.site_extensions import api_reference, command_reference, contents, docstrings
from docs.site_extensions.public_names import MODULES, explained_as, names_of, public_names

import manyhands
from docs import check_site
from manyhands.cli.app import app
from support import ROOT

DOCS = ROOT / "docs"
PAGES = sorted((DOCS / "reference").glob("*.md"))
DIRECTIVE = re.compile(r"^```\{public-names\} ([\w.]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXPLAINED = {
    path: name
    for path, name in public_names().items()
    if inspect.isclass(name.value) or inspect.isroutine(name.value)
    if explained_as(name.value) == path
}


NOTATION = re.compile(
    r"^```\w*$|^:(?:param|raises|returns|yields)\b|^(?:Args|Raises|Returns|Yields):$", re.MULTILINE
)
"""What is written differently in a docstring and in Markdown."""


def words(text: str) -> str:
    """The letters and digits of a text, without its notation."""
    return re.sub(r"\W", "", NOTATION.sub("", text))


def test_every_public_name_is_on_one_page_of_the_reference() -> None:
    shown = []
    for page in PAGES:
        for module, names in DIRECTIVE.findall(page.read_text("utf-8")):
            if ":module:" not in names:
                shown += [f"{module}.{name}" for name in names.split() or names_of(module)]
    assert sorted(shown) == sorted(public_names())
    own = {name for name in manyhands.__all__ if inspect.ismodule(getattr(manyhands, name))}
    assert {f"manyhands.{name}" for name in own} <= set(MODULES)
    assert len(shown) > 300


@pytest.mark.parametrize("path", EXPLAINED)
def test_the_reference_says_what_help_says(path: str) -> None:
    value = EXPLAINED[path].value
    text = api_reference.reference(path)
    heading, _, body = text.partition("\n")
    assert words(api_reference.docstring_of(value)) in words(body)
    if not (inspect.isclass(value) and issubclass(value, BaseException)):
        for name in inspect.signature(value).parameters:
            assert re.search(rf"\b{name}\b", heading), (path, name)
    assert " at 0x" not in text, "an address differs between builds"


def test_fields_and_methods_of_a_class_are_explained() -> None:
    members = {member.name: member for member in api_reference.members_of(manyhands.Job)}
    fields = {name for name in manyhands.Job.__dataclass_fields__ if name[0] != "_"}
    assert fields <= set(members)
    assert members["budget"].kind == "property"
    assert all(member.text for member in members.values())
    of_strategy = {member.name for member in api_reference.members_of(manyhands.strategies.ssp)}
    assert {"staleness", "servers", "codec"} <= of_strategy
    assert "on_message" not in of_strategy, "methods of the contract are explained there"


def test_an_alias_leads_to_the_name_that_users_write() -> None:
    text = api_reference.reference("manyhands.protocols.StaleSynchronous")
    assert "The same as {py:obj}`manyhands.strategies.ssp`" in text
    assert "staleness: int = 1" in text


@pytest.mark.parametrize("verb", command_reference.subcommands())
def test_the_command_line_is_what_the_command_says(verb: str) -> None:
    text = command_reference.reference(verb)
    command = typer.main.get_group(app).commands[verb]
    for parameter in command.params:
        for name in parameter.opts:
            shown = re.search(rf"^:::{{option}} .*{re.escape(name)}", text, re.MULTILINE)
            assert bool(shown) != bool(getattr(parameter, "hidden", False)), name
        if parameter.help and not getattr(parameter, "hidden", False):
            assert words(parameter.help) in words(text)


def test_every_page_has_one_place_in_the_contents() -> None:
    found = {str(path.relative_to(DOCS).with_suffix("")) for path in DOCS.rglob("*.md")}
    below = contents.contents(found)
    placed = [page for pages in below.values() for page in pages]
    assert sorted(placed) == sorted(set(placed))
    own_contents = {"course"} if "{toctree}" in _course() else set()
    unplaced = found - set(placed) - {"index"}
    assert {page for page in unplaced if page.split("/")[0] not in own_contents} == set()
    named = {
        contents._in_folder_of(page, name)
        for page, names in contents.CONTENTS.items()
        for name in names.split()
    }
    assert named - found <= {"course/index"}


def _course() -> str:
    index = DOCS / "course" / "index.md"
    return index.read_text("utf-8") if index.exists() else ""


def test_sections_tables_and_examples_of_a_docstring_keep_their_form() -> None:
    text = docstrings.as_markdown(
        "Sum.\n\nNames:\n\n    a    one\n    b    two <x>\n\nArgs:\n    x: a number,\n"
        "        or <two>.\n\nExample:\n    >>> 1 + 1\n    2\n"
    )
    assert "```text\na    one\nb    two <x>\n```" in text
    assert ":param x: a number,\n        or \\<two>." in text
    assert "```pycon\n>>> 1 + 1\n2\n```" in text


def test_links_that_lead_nowhere_are_found(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(
        '<h1 id="here">a</h1><a href="#here"></a><a href="#there"></a><a href="no.html"></a>'
        '<a href="https://example.org"></a><script src="https://example.org/x.js"></script>'
        '<img src="index.html">',
        encoding="utf-8",
    )
    (tmp_path / "a.css").write_text('@import "https://example.org/a.css";', encoding="utf-8")
    assert check_site.broken_links(tmp_path) == [
        "index.html loads https://example.org/x.js",
        "index.html: there is no anchor #there",
        "index.html: there is no no.html",
        "a.css loads https://example.org/a.css",
    ]


def test_the_script_of_the_start_page_trains(tmp_path: Path) -> None:
    page = (DOCS / "start.md").read_text("utf-8")
    (script,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "script.py").write_text(script, encoding="utf-8")
    command = [sys.executable, "-m", "manyhands", "simulate", "script.py"]
    done = subprocess.run(
        [*command, "--workers", "2", "--strategy", "ssp(staleness=4)", "--samples", "640"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout


@pytest.mark.parametrize("module", MODULES)
def test_names_of_a_module_are_what_it_exports(module: str) -> None:
    exported = import_module(module).__all__
    assert set(names_of(module)) <= set(exported)


@pytest.mark.parametrize("module", [contents, docstrings], ids=lambda module: module.__name__)
def test_examples_of_the_extensions_are_true(module: ModuleType) -> None:
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0
