"""Files around the package: they name the same version, and what is built is complete."""

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import manyhands
from support import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def test_the_citation_names_this_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"\nversion: {manyhands.__version__}\n" in citation


def test_workflows_run_the_commands_that_contributors_run() -> None:
    folder = ROOT / ".github" / "workflows"
    texts = {path.stem: path.read_text("utf-8") for path in folder.glob("*.yml")}
    assert set(texts) == {"ci", "docs", "release"}
    assert "bash .ci/run" in texts["ci"]
    groups = re.findall(r"--group (\w+)", "".join(texts.values()))
    assert set(groups) <= set(PROJECT["dependency-groups"])
    # No token is stored: PyPI trusts the workflow.
    assert "id-token: write" in texts["release"]
    assert "password" not in texts["release"]


def test_torch_is_bounded_to_what_is_tested() -> None:
    (torch,) = (one for one in PROJECT["project"]["dependencies"] if one.startswith("torch"))
    ci = (ROOT / ".ci" / "run").read_text("utf-8")
    (tested,) = re.findall(r"torch==(\d+\.\d+)\.\d+", ci)
    major, minor = map(int, tested.split("."))
    assert torch == f"torch>={tested},<{major}.{minor + 1}"


@pytest.mark.timeout(120)
def test_what_is_built_has_all_modules_and_no_more(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,), (source,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    checked = subprocess.run(
        (sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(source)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    package = ROOT / "src" / "manyhands"
    modules = {path.relative_to(ROOT / "src").as_posix() for path in package.rglob("*.py")}
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert modules <= packed
    assert "manyhands/py.typed" in packed
    assert all(name.startswith("manyhands/") for name in packed)
    with tarfile.open(source) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    assert "docs/course/part-1.md" in names
    assert not any(name.startswith(("runs/", ".data/", "build/")) for name in names)
