"""Private folders of runs: where they are, and that none is left behind for long."""

import os
import subprocess
import sys
import tempfile
import textwrap

import pytest

from manyhands.failure import Refused
from manyhands.live.processes.private_folder import private_folder, sweep

HOLDING = """
    import sys, tempfile, threading
    from manyhands.live.processes.private_folder import private_folder

    with private_folder() as folder:
        print(folder, flush=True)
        threading.Event().wait()
"""


def test_it_is_removed_with_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with private_folder() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
    assert [*tmp_path.iterdir()] == []


def test_a_path_that_is_too_long_for_sockets_is_refused(tmp_path, monkeypatch):
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with pytest.raises(Refused, match="set TMPDIR to a shorter one"), private_folder():
        pass


def test_what_a_killed_run_left_is_removed_by_the_next_one(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOLDING)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    try:
        assert process.stdout is not None
        left = process.stdout.readline().strip()
        os.utime(left, (0, 0))
        sweep(tmp_path)
        assert [str(one) for one in tmp_path.iterdir()] == [left], "its owner is alive"
    finally:
        process.kill()
        process.communicate()
    with private_folder() as folder:
        assert [*tmp_path.iterdir()] == [folder]
