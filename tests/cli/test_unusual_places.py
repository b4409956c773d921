"""The command in places where files and characters are not as usual."""

import os
import subprocess
import sys


def test_a_current_folder_that_was_deleted_is_named(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f"rmdir {gone}; exec {sys.executable} -m manyhands strategies"
    done = subprocess.run(
        ["bash", "-c", command], cwd=gone, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == (
        "manyhands: the current folder has been deleted: change to one that exists\n"
    )


def test_a_locale_without_the_characters_shows_others():
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "manyhands", "strategies", "ssp"],
        capture_output=True,
        check=False,
        env={**os.environ, **plain},
    )
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
