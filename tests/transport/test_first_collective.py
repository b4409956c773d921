"""A peer that dies or stops before the first collective: an error within the timeout and 1 s."""

import os
import signal
import sys

import pytest

from manyhands.transport.collectives import connect_store, serve_store
from support import wait_for

TIMEOUT = 4.0
WORKER = """
    import sys, time
    import torch
    from manyhands.transport.collectives import Group, connect_store

    rank, port, when = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    store = connect_store("127.0.0.1", port)
    if rank == 1 and when == "before":
        store.set("ready/1", "yes")
        time.sleep(600)
    about = {"epoch": 1, "device": torch.device("cpu"), "timeout": 4.0}
    if when == "before":
        store.set("ready/0", "yes")
        begun = time.monotonic()
    try:
        group = Group(store, rank, 2, **about)
        if when == "after":
            store.set(f"ready/{rank}", "yes")
            if rank == 1:
                time.sleep(600)
            store.wait(["go"])
            begun = time.monotonic()
        group.sum(torch.ones(8))
    except Exception as error:
        store.set("error", f"{time.monotonic() - begun:.3f} {type(error).__name__}: {error}")
"""


@pytest.mark.parametrize("name", ["SIGKILL", pytest.param("SIGSTOP", marks=pytest.mark.slow)])
@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.slow), "after"])
def test_it_is_an_error_within_the_timeout_and_a_second(run_script, start, name, when):
    """Before the group is made, or after it and before its first collective."""
    _store, port = serve_store()
    reader = connect_store("127.0.0.1", port)
    first = run_script(WORKER, "0", str(port), when, name="worker.py")
    second = start(sys.executable, first.folder / "worker.py", "1", str(port), when)
    for rank in (0, 1):
        ready = f"ready/{rank}"
        wait_for(lambda: reader.check([ready]), 60, "both workers")  # noqa: B023 - called at once
    os.kill(second.process.pid, getattr(signal, name))
    reader.set("go", "yes")
    wait_for(lambda: reader.check(["error"]), TIMEOUT + 15, "an error")
    seconds, _, words = reader.get("error").decode().partition(" ")
    print(f"{name} {when}: {words} after {seconds} s")
    assert float(seconds) <= TIMEOUT + 1.0
