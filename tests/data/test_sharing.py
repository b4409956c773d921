import subprocess
import sys

import pytest

from manyhands.data.folders import cache_folder
from manyhands.data.sharing import locked, replacing


def test_a_file_appears_whole_under_its_name(tmp_path):
    path = tmp_path / "new" / "a"
    with replacing(path) as file:
        file.write(b"half")
        assert not path.exists()
        file.write(b" and half")
    assert path.read_bytes() == b"half and half"
    assert [file.name for file in path.parent.iterdir()] == ["a"]


def test_a_file_whose_writing_fails_leaves_the_old_one(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def interrupted():
        with replacing(path) as file:
            file.write(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


def test_a_killed_holder_gives_the_lock_up(tmp_path):
    path = tmp_path / "a.lock"
    program = (
        "import sys; from pathlib import Path; from manyhands.data.sharing import locked\n"
        "with locked(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        try:
            assert holder.stdout.readline() == "held\n"
        finally:
            holder.kill()
    with locked(path):
        pass


def test_a_cache_that_cannot_be_made_is_named_with_the_way_out(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="set MANYHANDS_CACHE"), locked(tmp_path / "file" / "a.lock"):
        pass


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("MANYHANDS_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == tmp_path / ".cache" / "manyhands"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "manyhands"
    monkeypatch.setenv("MANYHANDS_CACHE", "~/mine")
    assert cache_folder() == tmp_path / "mine"
