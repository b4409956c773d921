"""Shared memory is filled once, by the first process, even if a process dies meanwhile."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from manyhands.transport.shared.memory import join, reserve
from support import wait_for

SIZE = 4096


@pytest.fixture
def descriptor():
    made = reserve()
    yield made
    os.close(made)


def fill_with(value: int):
    def fill(memory: memoryview) -> None:
        memory[:] = bytes([value]) * len(memory)

    return fill


def test_it_is_filled_once_and_what_one_writes_all_see(descriptor):
    first = join(os.getpid(), descriptor, SIZE, fill_with(1))
    second = join(os.getpid(), descriptor, SIZE, fill_with(2))
    assert bytes(second) == bytes([1]) * SIZE
    first[7] = 9
    assert second[7] == 9


def test_of_many_who_come_at_once_one_fills(descriptor):
    filled = []

    def fill(memory: memoryview) -> None:
        filled.append(1)
        time.sleep(0.05)
        fill_with(5)(memory)

    seen = []

    def come() -> None:
        seen.append(bytes(join(os.getpid(), descriptor, SIZE, fill)))

    threads = [threading.Thread(target=come) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(filled) == 1
    assert set(seen) == {bytes([5]) * SIZE}, "no process saw it before it was full"


def test_if_one_is_killed_while_it_fills_the_next_fills(descriptor, tmp_path):
    sign = tmp_path / "filling"
    script = f"""
import pathlib, time
from manyhands.transport.shared.memory import join

def fill(memory):
    memory[:9] = b"unfinishe"
    pathlib.Path({str(sign)!r}).touch()
    time.sleep(600)

join({os.getpid()}, {descriptor}, {SIZE}, fill)
"""
    process = subprocess.Popen([sys.executable, "-c", script])
    try:
        wait_for(sign.exists, 60, "the filling")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    memory = join(os.getpid(), descriptor, SIZE, fill_with(3))
    assert bytes(memory) == bytes([3]) * SIZE


def test_another_size_is_refused_with_the_reason(descriptor):
    join(os.getpid(), descriptor, SIZE, fill_with(1))
    with pytest.raises(ValueError, match="different models"):
        join(os.getpid(), descriptor, SIZE + 8, fill_with(1))


def test_it_cannot_be_shortened(descriptor):
    join(os.getpid(), descriptor, SIZE, fill_with(1))
    with pytest.raises(PermissionError):
        os.ftruncate(descriptor, 8)
