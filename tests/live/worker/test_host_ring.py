"""Copies of checkpoints on the next host: who keeps which, and what is found after a loss."""

import json

import pytest
import torch

from manyhands.live.worker.checkpoints.host_ring import HostRing, latest_whole
from support import ROOT

SCRIPT = """
    import os, sys
    import torch
    import forked
    from manyhands.files.checkpoints import CheckpointPlace, MemberState, TensorPart
    from manyhands.live.worker.checkpoints.host_ring import HostRing
    from manyhands.live.worker.checkpoints.memory_copies import MemoryCopies
    from manyhands.trace import Header, Recorder
    from manyhands.transport.collectives import Group

    HOSTS = (("a", 2), ("b", 1), ("c", 2))
    LOST = sys.argv[1]
    RANKS = {"a": (0, 1), "b": (2,), "c": (3, 4)}
    # One memory for each host, as its agent would have it: two generations of five files.
    memory = {name: [os.memfd_create("test") for _ in range(10)] for name, _ in HOSTS}

    def state(rank, samples):
        part = torch.full((rank + 2, 3), float(samples + rank))
        piece = TensorPart(f"model/{rank}", part, tuple(part.shape), (0, 0))
        return MemberState([piece], {}, {}, {"rank": rank})

    def place(samples):
        return CheckpointPlace(
            samples=samples, step=samples, strategy="fully_sharded()", workers=5, seconds=0.0,
            settings={}, aliases={},
        )

    def work(store, rank, size):
        (host,) = (name for name, ranks in RANKS.items() if rank in ranks)
        paths = tuple(f"/proc/self/fd/{one}" for one in memory[host])
        group = Group(store, rank, size, epoch=1, device=torch.device("cpu"), timeout=60.0)
        header = Header(
            role="worker", rank=rank, host=host, pid=os.getpid(), boot="", clock=0.0, wall=0.0
        )
        recorder = Recorder(header, lambda _: None, lambda: 0.0)
        copies = MemoryCopies(paths, group, 0, recorder, HostRing(HOSTS))
        assert copies.gather() is None
        for samples in (10, 20, 30):
            copies.store(place(samples), state(rank, samples))
        group.sum(torch.zeros(1))
        if host == LOST:
            # Another machine has joined under its name.
            for one in memory[host]:
                os.ftruncate(one, 0)
        group.sum(torch.zeros(1))
        fresh = MemoryCopies(paths, group, 0, recorder, HostRing(HOSTS))
        found = fresh.gather()
        values = {name: found.tensor(name).tolist() for name in found.manifest.tensors}
        fresh.store(place(40), state(rank, 40))
        again = MemoryCopies(paths, group, 0, recorder, HostRing(HOSTS)).gather()
        return found.samples, values, again.samples

    if __name__ == "__main__":
        forked.run(work, 5)
"""


def test_every_worker_has_its_copy_on_another_host() -> None:
    hosts = (("first", 0), ("a", 3), ("b", 1), ("c", 2))
    ring = HostRing(hosts)
    names = [name for name, count in hosts for _ in range(count)]
    for rank, name in enumerate(names):
        assert names[ring.keeper(rank)] != name
        assert rank in ring.guests(ring.keeper(rank))
    assert sum(len(ring.guests(rank)) for rank in range(6)) == 6


def test_a_generation_counts_if_every_file_is_somewhere() -> None:
    assert latest_whole(torch.full((2, 4), -1)) is None
    # The second worker was lost with its host while 80 was written: the copy of 40 is there.
    assert latest_whole(torch.tensor([[40, 40, 80, -1], [-1, -1, -1, -1]])) == (0, 40)
    # Files of two cuts in one generation are no checkpoint.
    assert latest_whole(torch.tensor([[40, 80, 120, -1], [40, 80, -1, -1]])) is None


@pytest.mark.parametrize("lost", ["none", "a", "b", "c"])
def test_what_a_lost_host_had_is_found_on_the_next(run_script, lost) -> None:
    started = run_script(SCRIPT, lost, PYTHONPATH=str(ROOT / "tests"))
    assert started.finish(100) == 0, started.text()
    for rank in range(5):
        text = (started.folder / f"given-{rank}.json").read_text()
        samples, values, later = json.loads(text)
        assert (samples, later) == (30, 40)
        assert values == {f"model/{one}": [[30.0 + one] * 3] * (one + 2) for one in range(5)}
