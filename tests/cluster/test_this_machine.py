import os
import socket
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from manyhands.cluster import Cluster, this_machine


def test_local_is_this_machine_with_the_cores_that_this_process_may_use() -> None:
    (here,) = Cluster.local().hosts
    assert here.cores == len(os.sched_getaffinity(0))
    assert here.name == socket.gethostname()
    assert here.memory == psutil.virtual_memory().total
    assert here.devices == ()
    assert here.address == "127.0.0.1"


def test_local_counts_only_the_cores_that_are_left_to_this_process() -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert Cluster.local().cores == 1
    finally:
        os.sched_setaffinity(0, before)


def test_local_has_a_device_for_every_gpu_and_then_a_worker_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(this_machine, "_gpus", lambda: 3)
    (here,) = Cluster.local().hosts
    assert here.devices == ("cuda:0", "cuda:1", "cuda:2")
    assert Cluster.local().default_workers() == 3


@pytest.mark.parametrize(
    ("nodes", "allowed", "expected"),
    [
        (("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"), None, 2),
        (("nvidia0", "nvidia1"), "1", 1),
        (("nvidia0", "nvidia1"), "", 0),
        (("nvidia0", "nvidia1"), "0,7,1", 1),
        (("nvidia0", "nvidia1"), "GPU-8932f937, GPU-2f1b", 2),
        ((), None, 0),
    ],
)
def test_gpus_are_those_of_the_driver_that_cuda_shows(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    nodes: tuple[str, ...],
    allowed: str | None,
    expected: int,
) -> None:
    driver, torch = tmp_path / "dev", tmp_path / "torch"
    driver.mkdir()
    for node in nodes:
        (driver / node).touch()
    (torch / "lib").mkdir(parents=True)
    installed = SimpleNamespace(origin=str(torch / "__init__.py"))
    monkeypatch.setattr(this_machine, "_DRIVER", driver)
    monkeypatch.setattr(this_machine, "find_spec", lambda _: installed)
    if allowed is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", allowed)
    assert this_machine._gpus() == 0, "a torch without CUDA finds none"
    (torch / "lib" / "libtorch_cuda.so").touch()
    assert this_machine._gpus() == expected
