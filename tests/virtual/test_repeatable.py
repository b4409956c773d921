"""The same seed gives the same run, to the bit, wherever and whenever."""

import os
import re
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from virtual_jobs import a_job

import manyhands as mh
from manyhands.protocols import Asynchronous
from manyhands.trace import digest

SCRIPT = """
    import sys
    import torch, torch.nn.functional as F
    import manyhands as mh
    from manyhands.trace import digest

    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(300, 8, generator=generator)
    targets = torch.randint(0, 3, (300,), generator=generator)
    data = torch.utils.data.TensorDataset(inputs, targets)
    job = mh.Job(
        model=lambda: torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.Dropout(), torch.nn.Linear(16, 3)
        ),
        optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
        loss=F.cross_entropy, data=data, validation=data, global_batch=30, epochs=3, seed=5,
    )
    run = mh.simulate(
        job, "asynchronous(servers=2)", workers=7, bandwidth="10mbit", latency="1ms",
        faults='[crash(worker=2, at=0.4, restart=0.3), '
            'cut(a="worker-1", b="server-0", start=1, stop=2)]',
        output=sys.argv[1],
    )
    print(digest(run.trace), run.parameters_digest)
"""


@pytest.fixture
def elsewhere(tmp_path: Path) -> Callable[[str], str]:
    """What the script prints in a fresh process, in a folder of its own."""

    def run(name: str) -> str:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "script.py").write_text(textwrap.dedent(SCRIPT), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "script.py", name],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env={**os.environ, "PYTHONHASHSEED": str(len(name))},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_two_fresh_processes_make_one_run(elsewhere: Callable[[str], str]) -> None:
    first, second = elsewhere("here"), elsewhere("over there")
    assert re.fullmatch(r"[0-9a-f]{64} [0-9a-f]{64}\n", first)
    assert first == second


def test_twice_in_one_process(virtually) -> None:
    given = {
        "workers": 5,
        "seconds": "lognormal(0.1, cv=0.5)",
        "faults": "[crash(worker=1, at=0.3, restart=0.2), pause(server=0, at=0.5, seconds=0.5)]",
    }
    first, second = virtually(**given), virtually(**given)
    assert first.digest == second.digest
    assert first.run.parameters_digest == second.run.parameters_digest


def test_another_seed_is_another_run(virtually) -> None:
    runs = [virtually(a_job(seed=seed), seconds="normal(0.1, cv=0.3)") for seed in (1, 2)]
    assert runs[0].digest != runs[1].digest
    assert runs[0].run.parameters_digest != runs[1].run.parameters_digest


def test_dropout_draws_by_worker_and_batch_and_not_by_who_came_before(virtually) -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 2))

    job = a_job(model=model)
    assert virtually(job).digest == virtually(job).digest


def test_the_users_random_state_and_threads_are_left_alone(virtually) -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    threads = torch.get_num_threads()
    virtually()
    assert torch.equal(torch.rand(4), expected)
    assert torch.get_num_threads() == threads


def test_nothing_of_the_machine_is_in_the_trace(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    run = mh.simulate(a_job(), Asynchronous(servers=2), workers=3, bandwidth="1gbit", output=folder)
    text = "".join(path.read_text() for path in (folder / "trace").iterdir())
    for word in (socket.gethostname(), str(tmp_path), "a folder", str(Path(mh.__file__).parent)):
        assert word not in text
    headers = [process.header for process in run.trace.processes]
    assert {header.pid for header in headers} == {0}
    assert {header.kind for header in headers} == {"virtual"}
    assert {header.wall for header in headers} == {0.0}


def test_the_summary_is_that_of_a_virtual_run_and_says_its_digest(tmp_path: Path) -> None:
    run = mh.simulate(a_job(), "locked(servers=2)", workers=3, output=tmp_path / "run")
    summary = run.summary()
    assert summary.startswith("asynchronous(servers=2) on 3 virtual workers, 1 host: finished")
    assert f"  digest       {digest(run.trace)}" in summary
    assert f"  parameters   {run.parameters_digest}" in summary
    assert "  samples      400 seen, 0 repeated, 0 lost" in summary
    assert run.status == "finished"
    assert set(run.state_dict()) == {"weight", "bias"}
