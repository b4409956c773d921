"""Files that only their owner can read, whatever is in their place before."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from manyhands.files.private_file import exposure, write_private
from manyhands.live.hosts.invitation import check_key
from manyhands.transport.security import JobKey

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def _nothing(_: Path) -> None:
    pass


def _open_file(path: Path) -> None:
    path.write_text("old")
    path.chmod(0o644)


def _link(path: Path) -> None:
    target = path.with_name("target")
    target.write_text("theirs")
    target.chmod(0o666)
    path.symlink_to(target)


def _dangling_link(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


def _hard_link(path: Path) -> None:
    _open_file(path.with_name("target"))
    path.hardlink_to(path.with_name("target"))


@pytest.mark.parametrize("before", [_nothing, _open_file, _link, _dangling_link, _hard_link])
@pytest.mark.usefixtures("umask")
def test_it_is_private_whatever_was_in_its_place(tmp_path, before) -> None:
    path, target = tmp_path / "key", tmp_path / "target"
    before(path)
    theirs = target.read_text() if target.exists() else ""
    opened = path.open() if path.exists() else None
    key = JobKey.new()
    key.write(path)
    assert not path.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text().strip() == key.text
    check_key(path)
    # A process that had opened the former file does not see the key.
    if opened is not None:
        assert key.text not in opened.read()
        opened.close()
    assert (target.read_text() if target.exists() else "") == theirs
    assert not (tmp_path / "nowhere").exists()
    assert {one.name for one in tmp_path.iterdir()} <= {"key", "target"}


def test_a_failed_write_leaves_the_former_file(tmp_path) -> None:
    (tmp_path / "key").mkdir()
    with pytest.raises(OSError, match="key"):
        write_private(tmp_path / "key", "text")
    assert [one.name for one in tmp_path.iterdir()] == ["key"]


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o602, 0o777])
def test_a_key_that_others_can_read_or_change_is_refused(tmp_path, mode) -> None:
    path = tmp_path / "key"
    JobKey.new().write(path)
    path.chmod(mode)
    with pytest.raises(ValueError, match=rf"mode {mode:04o}: other users .*chmod 600 .*new key"):
        check_key(path)
    # Also behind a link.
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(ValueError, match="other users can read"):
        check_key(tmp_path / "link")
    path.chmod(0o400)
    check_key(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
def test_a_mounted_secret_of_another_owner_may_be_read_by_its_group(tmp_path) -> None:
    path = tmp_path / "key"
    JobKey.new().write(path)
    os.chown(path, 65534, os.getgid())
    for mode, found in ((0o440, ""), (0o400, ""), (0o444, "mode 0444"), (0o460, "mode 0460")):
        path.chmod(mode)
        assert exposure(path) == found
