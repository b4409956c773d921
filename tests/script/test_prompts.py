"""The prompts of Python and of IPython."""

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest

from notebooks import private

DEFINED = (
    "import torch, torch.nn.functional as F",
    "import manyhands as mh",
    "data = torch.utils.data.TensorDataset(torch.eye(2).repeat(8, 1), torch.arange(16) % 2)",
    "make_model = lambda: torch.nn.Linear(2, 2)",
    "make_optimizer = lambda model: torch.optim.SGD(model.parameters(), lr=0.1)",
    "given = dict(loss=F.cross_entropy, data=data, global_batch=8, epochs=1)",
    "job = mh.Job(model=make_model, optimizer=make_optimizer, **given)",
)
TRAIN = "print('ended', mh.train(job, 'allreduce()', workers=2).status)"


@pytest.fixture
def prompt(tmp_path: Path) -> Iterator[Any]:
    """Start an interactive program in an empty folder; it is ended with the test."""
    started = []

    def begin(*words: str) -> pexpect.spawn:
        child = pexpect.spawn(
            sys.executable,
            [*words],
            cwd=str(tmp_path),
            env={**os.environ, **private(tmp_path), "TERM": "dumb", "TMPDIR": str(tmp_path)},
            encoding="utf-8",
            timeout=100,
            dimensions=(50, 400),
        )
        started.append(child)
        return child

    yield begin
    for child in started:
        # Its own way to end a child waits for a tenth of a second only.
        if child.isalive():
            child.kill(signal.SIGKILL)
            child.wait()
        child.close()


def plain(text: str) -> str:
    """What was printed, without the codes for terminals."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


@pytest.mark.timeout(150)
def test_a_job_that_was_typed_in_plain_python_is_refused_with_the_way_out(prompt: Any) -> None:
    child = prompt("-i", "-q")
    for line in (*DEFINED, TRAIN):
        child.expect(">>> ")
        child.sendline(line)
    child.expect("Refused: (.*)\r\n")
    words = plain(child.match[1])
    assert "the job 'job' was created interactively or read from standard input" in words
    assert "python script.py, or use IPython or a notebook" in words
    child.expect(">>> ")
    child.sendline("print(mh.simulate(job, 'ssp()', workers=2).status)")
    child.expect("finished\r\n")


@pytest.mark.timeout(150)
@pytest.mark.slow
def test_a_job_of_an_imported_module_trains_at_the_prompt(prompt: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("\n".join(DEFINED), encoding="utf-8")
    child = prompt("-i", "-q")
    for line in ("from mine import *", TRAIN):
        child.expect(">>> ")
        child.sendline(line)
    child.expect("ended finished")


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_ipython_in_a_terminal_trains_what_was_typed(prompt: Any, tmp_path: Path) -> None:
    child = prompt("-m", "IPython", "--simple-prompt", "--no-banner", "--no-confirm-exit")
    for number, line in enumerate((*DEFINED, TRAIN), 1):
        child.expect(rf"In \[{number}\]: ")
        child.sendline(line)
    child.expect("ended finished")
    (run,) = (tmp_path / "runs").iterdir()
    script = (run / "notebook.py").read_text("utf-8")
    assert "make_model = lambda" in script
    assert "mh.train" not in script
