"""Every strategy can be written in Python under its name, where an editor completes it."""

import inspect
import os
import pydoc
import subprocess
import sys
import textwrap
from dataclasses import MISSING
from pathlib import Path
from typing import Any

import pytest

import manyhands as mh
from manyhands import strategies
from manyhands.notation.fields import default, settable
from manyhands.strategies import CATALOG, by_name

NAMES = CATALOG.names()


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_its_strategy(name: str) -> None:
    assert getattr(strategies, name) is getattr(by_name, name) is CATALOG[name]
    assert name in strategies.__all__
    assert getattr(mh.strategies, name)() == mh.strategy(name) == mh.strategy(f"{name}()")


@pytest.mark.parametrize("name", NAMES)
def test_its_example_in_text_is_its_example_in_python(name: str) -> None:
    value = mh.strategy(CATALOG.describe(name).example)
    given: dict[str, Any] = {field.name: getattr(value, field.name) for field in settable(value)}
    assert getattr(mh.strategies, name)(**given) == value == mh.strategy(str(value))


@pytest.mark.parametrize("name", NAMES)
def test_help_shows_the_docstring_and_the_parameters(name: str) -> None:
    cls = CATALOG[name]
    shown = pydoc.plain(pydoc.render_doc(getattr(mh.strategies, name)))
    assert inspect.getdoc(cls)
    assert str(inspect.getdoc(cls)).splitlines()[0] in shown
    parameters = inspect.signature(cls).parameters
    assert [*parameters] == [field.name for field in settable(cls)]
    for field in settable(cls):
        assert (default(field) is MISSING) == (
            parameters[field.name].default is inspect.Parameter.empty
        )


def test_no_name_is_missing_and_none_is_more() -> None:
    classes = {name for name, value in vars(by_name).items() if inspect.isclass(value)}
    assert classes == set(NAMES)


def test_as_the_documentation_writes_them() -> None:
    assert mh.strategies.ssp(staleness=4, servers=2) == mh.strategy("ssp(staleness=4, servers=2)")
    assert mh.strategies.allreduce(bucket_mb=10) == mh.strategy("allreduce(bucket_mb=10)")
    nested = mh.strategies.hierarchical(outer=mh.strategies.diloco(every=20))
    assert nested == mh.strategy("hierarchical(outer=diloco(every=20))")


def test_the_strategies_are_there_without_torch() -> None:
    check = "import sys, manyhands as mh; mh.strategies.ssp(staleness=4); "
    check += "sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True, timeout=60)


def test_a_type_checker_knows_the_parameters(tmp_path: Path) -> None:
    """A wrong name and a wrong type are found before anything is executed."""
    pytest.importorskip("mypy")
    script = tmp_path / "typed.py"
    script.write_text(
        textwrap.dedent("""
            import manyhands as mh

            good: mh.Strategy = mh.strategies.ssp(staleness=4, servers=2)
            mh.strategies.ssp(stale=4)
            mh.strategies.allreduce(bucket_mb="ten")
        """),
        encoding="utf-8",
    )
    settings = tmp_path / "mypy.ini"
    # Not what is told apart here, and half a minute of work.
    settings.write_text("[mypy]\n[mypy-torch.*,numpy.*]\nfollow_imports = skip\n", encoding="utf-8")
    options = ["--config-file", str(settings), "--cache-dir", str(tmp_path / "cache")]
    place = Path(mh.__file__).parents[1]
    # Where it is installed, mypy finds it by itself, and wants no path to it.
    path = {} if place.name == "site-packages" else {"MYPYPATH": str(place)}
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, str(script)],
        capture_output=True,
        text=True,
        check=False,
        timeout=170,
        env=os.environ | path,
    )
    found = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert len(found) == 2, done.stdout + done.stderr
    assert ':5: error: Unexpected keyword argument "stale"' in found[0]
    assert ':6: error: Argument "bucket_mb"' in found[1]
