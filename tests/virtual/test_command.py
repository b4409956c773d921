"""`manyhands simulate`, end to end."""

import re
import shlex
import sys
import textwrap
from pathlib import Path

import pytest

COMMAND = Path(sys.executable).parent / "manyhands"
SCRIPT = """
    import sys
    import torch
    import manyhands as mh

    print("executed as", __name__, sys.argv[1:])
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(100, 3, generator=generator)
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
    job = mh.Job(
        model=lambda: torch.nn.Linear(3, 1),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=torch.nn.functional.mse_loss,
        data=data, validation=data, metrics=(), global_batch=10, epochs=50, seed=4,
    )

    if __name__ == "__main__":
        raise SystemExit("below the guard")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(SCRIPT), encoding="utf-8")
    return path


def field(text: str, name: str) -> str:
    found = re.search(rf"^  {name} +(.*)$", text, re.MULTILINE)
    assert found, text
    return found[1]


def test_it_simulates_the_script_s_job_and_says_how_to_do_it_again(start, script: Path) -> None:
    faults = (
        '[crash(worker=2, at=0.2, restart=0.5), cut(a="worker-0", b="server-1", start=0.3, stop=1)]'
    )
    first = start(
        COMMAND, "simulate", script, "--strategy", "locked(servers=2)", "--workers", "5",
        "--samples", "500", "--seed", "9", "--times", "normal(0.05, cv=0.1)",
        "--bandwidth", "100mbit", "--latency", "0.5ms", "--cores", "2", "--detection", "2s",
        "--faults", faults, "--output", "mine", "--", "an argument",
    )  # fmt: skip
    assert first.finish() == 0, first.text()
    text = first.text()
    assert "executed as __manyhands__ ['an argument']" in text
    assert "asynchronous(servers=2) on 5 virtual workers, 7 hosts: finished" in text
    assert "500 seen, 2 repeated, 0 lost" in text
    assert field(text, "folder") == "mine"
    replay = field(text, "replay")
    command = shlex.split(replay)
    assert command[:2] == ["manyhands", "simulate"]
    assert {"--faults", "--seed", "--times", "--samples", "an argument"} <= set(command)
    assert "--output" not in command
    second = start(COMMAND, *command[1:])
    assert second.finish() == 0, second.text()
    assert field(second.text(), "digest") == field(text, "digest")
    assert field(second.text(), "parameters") == field(text, "parameters")
    assert field(second.text(), "replay") == replay


def test_mistakes_are_told_in_a_line(start, script: Path) -> None:
    for arguments, words in (
        (("no.py",), "there is no file no.py"),
        ((script, "--strategy", "allreduce(codec=int8())"), "codec=int8() of allreduce() is not"),
        ((script, "--faults", "crsh(worker=1)"), "there is no fault 'crsh'; did you mean 'crash'?"),
        ((script, "--workers", "2", "--faults", "crash(worker=5, at=1)"), "names worker-5"),
    ):
        started = start(COMMAND, "simulate", *arguments)
        assert started.finish() == 2
        assert words in started.text()
        assert "Traceback" not in started.text()


def test_a_run_that_fails_says_how_to_fail_again(start, script: Path) -> None:
    started = start(
        COMMAND, "simulate", script, "--workers", "1", "--faults", "crash(worker=0, at=0.5)"
    )
    assert started.finish() == 1
    assert "manyhands: all workers were lost after 0.5 s" in started.text()
    assert "--faults 'crash(worker=0, at=0.5)'" in field(started.text(), "replay")


def test_an_error_of_the_script_s_is_shown_whole(start, tmp_path: Path, script: Path) -> None:
    text = script.read_text(encoding="utf-8")
    text = text.replace("torch.nn.functional.mse_loss", "lambda outputs, targets: 1 / 0")
    script.write_text(text, encoding="utf-8")
    started = start(COMMAND, "simulate", script, "--workers", "2")
    assert started.finish() == 1
    assert "ZeroDivisionError" in started.text()
    assert 'script.py", line' in started.text()
    assert field(started.text(), "replay").endswith("--times 'lognormal(mean=0.1, cv=0.3)'")


def test_a_script_needs_one_job(start, tmp_path: Path) -> None:
    path = tmp_path / "empty.py"
    path.write_text("", encoding="utf-8")
    started = start(COMMAND, "simulate", path)
    assert started.finish() == 2
    assert "has no job at its top level; it needs exactly one" in started.text()
