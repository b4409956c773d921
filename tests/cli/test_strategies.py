"""`manyhands strategies`, as a terminal and a pipe see it."""

import subprocess
import sys

import pytest
import typer
from rich.cells import cell_len
from typer.testing import CliRunner

from manyhands.cli.strategies import strategies
from manyhands.strategies import CATALOG, names


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    app.command()(strategies)
    return app


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    # Whatever the terminal is that the tests run in.
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    return CliRunner()


def flat(text: str) -> str:
    """The words alone, however they were wrapped."""
    return " ".join(text.split())


def test_lists_all(app: typer.Typer, runner: CliRunner) -> None:
    result = runner.invoke(app, [])
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    for name in names():
        (line,) = [line for line in lines if line.startswith(f"{name}(")]
        assert CATALOG[name].support in line
        assert CATALOG.describe(name).summary.split()[0] in line


@pytest.mark.parametrize("name", names())
def test_explains_one(app: typer.Typer, runner: CliRunner, name: str) -> None:
    result = runner.invoke(app, [name])
    assert result.exit_code == 0
    description = CATALOG.describe(name)
    shown = flat(result.stdout)
    assert flat(description.signature) in shown
    assert description.summary in shown
    assert CATALOG[name].support in shown
    assert f"--strategy '{description.example}'" in shown
    for field in description.fields:
        assert f"{field.name}: {field.type}" in shown
        assert field.default in shown
        assert field.text in shown


@pytest.mark.parametrize("arguments", [[], *([name] for name in names())])
def test_fits_80_columns_without_colour(
    app: typer.Typer, runner: CliRunner, arguments: list[str]
) -> None:
    result = runner.invoke(app, arguments)
    assert "\x1b" not in result.stdout
    # By what is seen: a mark above a letter is a character of its own, and takes no column.
    assert max(cell_len(line.rstrip()) for line in result.stdout.splitlines()) <= 80


def test_misspelt_name(app: typer.Typer, runner: CliRunner) -> None:
    result = runner.invoke(app, ["alreduce"])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "did you mean 'allreduce'?" in result.stderr


def test_a_hostile_name_is_only_unknown(app: typer.Typer, runner: CliRunner) -> None:
    result = runner.invoke(app, ["[red]\x1b[31m"])
    assert result.exit_code == 2
    assert "there is no strategy" in result.stderr
    assert "\x1b" not in result.stderr


def test_loads_neither_torch_nor_rich_before_it_runs() -> None:
    check = (
        "import sys, manyhands.cli.strategies;"
        "sys.exit(bool({'torch', 'rich.console', 'rich.table'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", check], check=True, timeout=60)
