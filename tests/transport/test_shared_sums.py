"""Sums in memory that processes of one host share: exact, in one order, and freed when a peer ends.

The workers are forked from a process that has loaded torch, so that hundreds of them cost little.
"""

import json
import mmap

import pytest
import torch

from manyhands.engine.watched_group import SUMMABLE
from manyhands.transport.shared import sums
from manyhands.transport.shared.layout import room
from manyhands.transport.shared.sums import SharedSum, agree

FORKED = """
    import gc, itertools, json, mmap, os, random, signal, sys, threading, time
    import torch
    from manyhands.failure import PeerLost
    from manyhands.transport.collectives import Group, connect_store, serve_store
    from manyhands.transport.shared.exchange import SharedExchange
    from manyhands.transport.shared.layout import room
    from manyhands.engine.watched_group import SUMMABLE
    from manyhands.transport.shared.sums import SharedSum

    failed = mmap.mmap(-1, 4096)

    def forked(work, workers):
        "Call `work` in so many processes; return their ids."
        ids = []
        for rank in range(workers):
            pid = os.fork()
            if not pid:
                try:
                    work(rank)
                except BaseException as error:
                    failed[0] = 1
                    print(type(error).__name__, error, file=sys.stderr, flush=True)
                    os._exit(1)
                os._exit(0)
            ids.append(pid)
        return ids

    class Served:
        "A store that is served when all workers are forked: no fork may meet its thread."

        def __init__(self):
            self._port = memoryview(mmap.mmap(-1, 4096)).cast("I")

        def serve(self):
            self._store, self._port[0] = serve_store()

        def connect(self):
            while not self._port[0]:
                time.sleep(0.001)
            return connect_store("127.0.0.1", self._port[0])
"""

SUMS = """
    def mean(seed, workers, length, dtype):
        "The mean that all workers must have, summed in the order of ranks."
        total = values(seed, 0, length, dtype)
        for rank in range(1, workers):
            total = total + values(seed, rank, length, dtype)
        return total * (1.0 / workers)

    def values(seed, rank, length, dtype):
        generator = torch.Generator().manual_seed(1000 * seed + rank)
        return torch.randn(length, generator=generator).to(dtype)

    def work(memory, workers, rounds, rank):
        def check():
            assert not failed[0], "another one failed"

        shared = SharedSum(memoryview(memory), rank, workers, check)
        own, same = random.Random(rank), random.Random(0)
        exchanged = 0
        for seed in range(rounds):
            length = same.choice([1, 15, 16, 17, 100, 1000, 1024, 1025, 5000])
            dtype = same.choice(SUMMABLE)
            vector = values(seed, rank, length, dtype)
            exchanged += vector.nbytes
            if own.random() < 0.3:
                time.sleep(own.random() * 0.002)
            finite = shared.average(vector)
            assert finite
            wanted = mean(seed, workers, length, dtype)
            assert torch.equal(vector, wanted), (seed, length, dtype, vector - wanted)
        assert shared.exchanged[rank] == 0
        if workers == 2:
            # Its part of the other's tensor, and the other's part of the sum: all of it.
            assert sum(shared.exchanged) == exchanged

    workers, rounds = int(sys.argv[1]), int(sys.argv[2])
    memory = mmap.mmap(-1, room(4096, workers))
    ids = forked(lambda rank: work(memory, workers, rounds, rank), workers)
    ended = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ids]
    sys.exit(max(map(abs, ended)))
"""

EXCHANGES = """
    def values(seed, rank, length, dtype):
        generator = torch.Generator().manual_seed(1000 * seed + rank)
        return torch.randn(length, generator=generator).to(dtype)

    def in_order(rows):
        total = rows[0]
        for row in rows[1:]:
            total = total + row
        return total

    def work(memory, workers, rounds, rank):
        def check():
            assert not failed[0], "another one failed"

        shared = SharedExchange(memoryview(memory), rank, workers, check)
        own, same = random.Random(rank), random.Random(0)
        exchanged = 0
        for seed in range(rounds):
            length = same.choice([0, 1, 17, 100, 1000, 1024, 1025, 5000])
            dtype, kind = same.choice(SUMMABLE), same.choice(["gather", "scatter", "sum", "swap"])
            if own.random() < 0.3:
                time.sleep(own.random() * 0.002)
            if kind == "gather":
                all_rows = [values(seed, other, length, dtype) for other in range(workers)]
                found = torch.zeros(workers * length, dtype=dtype)
                mine = all_rows[rank]
                if same.random() < 0.5:
                    # As FSDP does: the part of this worker is in its place.
                    mine = found[rank * length : (rank + 1) * length].copy_(mine)
                shared.gather(found, mine)
                assert torch.equal(found, torch.cat(all_rows)), (seed, length, dtype)
            else:
                given = [values(seed, each, workers * length, dtype) for each in range(workers)]
                total, mine = in_order(given), given[rank].clone()
                if kind == "swap":
                    found = torch.zeros_like(mine)
                    shared.swap(found, mine)
                    rows = [one.view(workers, length)[rank] for one in given]
                    assert torch.equal(found, torch.cat(rows)), (seed, length, dtype)
                elif kind == "sum":
                    shared.sum(mine)
                    assert torch.equal(mine, total), (seed, length, dtype)
                else:
                    part = torch.zeros(length, dtype=dtype)
                    shared.scatter(part, mine)
                    wanted = total[rank * length : (rank + 1) * length]
                    assert torch.equal(part, wanted), (seed, length, dtype)
            exchanged += length * dtype.itemsize * (workers - 1) * (2 if kind == "sum" else 1)
        assert shared.exchanged[rank] == 0
        if workers == 2:
            assert abs(sum(shared.exchanged) / exchanged - 1) < 0.05

    workers, rounds = int(sys.argv[1]), int(sys.argv[2])
    memory = mmap.mmap(-1, room(4096, workers))
    ids = forked(lambda rank: work(memory, workers, rounds, rank), workers)
    ended = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ids]
    sys.exit(max(map(abs, ended)))
"""

HOSTS = """
    # Workers of several hosts, which are taken for such though they are all here.
    LENGTHS = [1, 16, 17, 100, 5000, 50_000]

    def work(served, hosts, rank):
        group = Group(
            served.connect(), rank, len(hosts), epoch=1, device=torch.device("cpu")
        )
        same = [one for one in range(len(hosts)) if hosts[one] == hosts[rank]]
        group._here = {f"worker-{one}" for one in same if one != rank}
        assert group.shared_sum(65536) is None, "not between hosts, unless it is asked for"
        shared = group.shared_sum(65536, between_hosts=True)
        if hosts in ("aab", "abc"):
            assert shared is None, "each host must have the same number of workers, above 1"
            os._exit(0)
        assert shared.between.hosts == len(set(hosts))
        at_start = group.traffic()[0]
        for length, dtype in itertools.product(LENGTHS, SUMMABLE):
            vector = torch.arange(length).remainder(64).to(dtype) + rank
            assert shared.average(vector)
            mean = sum(range(len(hosts))) / len(hosts)
            wanted = torch.arange(length).remainder(64) + mean
            largest = (vector - wanted).abs().max()
            assert largest <= (0.5 if dtype == torch.bfloat16 else 1e-5), (length, dtype, largest)
        vector[rank] = float("nan")
        assert not shared.average(vector), "the same on all hosts, wherever it is"
        sent = {peer: count - at_start[peer] for peer, count in group.traffic()[0].items()}
        group.sum(torch.zeros(1))
        numbers = sum(LENGTHS) * (4 + 8 + 2) + 50_000 * 2
        total, n = sum(sent.values()), len(hosts)
        assert abs(total / (2 * numbers * (n - 1) / n) - 1) < 0.05, (total, sent)
        inside = sum(sent[f"worker-{one}"] for one in same if one != rank)
        part = len(same)
        assert abs(inside / (2 * numbers * (part - 1) / part) - 1) < 0.05, (inside, sent)
        group.close()

    served = Served()
    ids = forked(lambda rank: work(served, sys.argv[1], rank), len(sys.argv[1]))
    served.serve()
    ended = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ids]
    sys.exit(max(map(abs, ended)))
"""

ENDS = """
    # Four workers in a group sum all the time; one is killed or stopped at a seeded moment, and
    # the others are told. What they write: when each was freed, and what is left in its memory.
    HOSTS = sys.argv[2]

    def work(served, seed, told, written, rank):
        group = Group(
            served.connect(), rank, 4, epoch=seed, device=torch.device("cpu")
        )
        # Workers of other hosts are taken for such though they are here.
        others = (one for one in range(4) if one != rank and HOSTS[one] == HOSTS[rank])
        group._here = {f"worker-{one}" for one in others}
        shared = group.shared_sum(65536, between_hosts=True)
        assert shared is not None
        assert (shared.between is None) == (len(set(HOSTS)) == 1)

        def watch():
            while not told[0]:
                time.sleep(0.0005)
            written[2 * rank] = time.monotonic()
            group.free()

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        lengths = random.Random(seed)
        told[1 + rank] = 1
        try:
            while True:
                shared.average(torch.ones(lengths.choice([10, 1000, 50_000])))
        except PeerLost:
            written[2 * rank + 1] = time.monotonic()
        watcher.join()
        group.close()
        del shared, group
        gc.collect()
        assert "memfd:manyhands" not in open("/proc/self/maps").read()

    freed = []
    for seed in range(int(sys.argv[1])):
        served = Served()
        told, numbers = mmap.mmap(-1, 4096), mmap.mmap(-1, 4096)
        written = memoryview(numbers).cast("d")
        ids = forked(lambda rank: work(served, seed, told, written, rank), 4)
        served.serve()
        draw = random.Random(seed)
        while sum(told[1:5]) < 4:
            time.sleep(0.001)
        time.sleep(draw.random() * 0.1)
        lost = draw.randrange(4)
        os.kill(ids[lost], draw.choice([signal.SIGKILL, signal.SIGSTOP]))
        time.sleep(0.01)
        told[0] = 1
        for rank, pid in enumerate(ids):
            if rank != lost:
                assert os.waitpid(pid, 0)[1] == 0, (seed, rank)
                freed.append(written[2 * rank + 1] - written[2 * rank])
        os.kill(ids[lost], signal.SIGKILL)
        os.waitpid(ids[lost], 0)
        del served
    print(json.dumps(freed))
"""


def ended(run_script, text, *arguments, seconds=150):
    """What a script printed; it must succeed."""
    script = run_script(FORKED + text, *arguments)
    assert script.finish(seconds) == 0, script.text()
    return script.text()


@pytest.mark.parametrize(("workers", "rounds"), [(2, 400), (3, 200), (5, 100), (8, 60)])
def test_means_are_those_in_the_order_of_ranks_to_the_bit(run_script, workers, rounds):
    """Also if tensors of different lengths follow each other, and some workers are late."""
    ended(run_script, SUMS, str(workers), str(rounds))


@pytest.mark.parametrize(("workers", "rounds"), [(2, 400), (3, 200), (5, 100)])
def test_gathers_scatters_and_sums_follow_each_other(run_script, workers, rounds):
    ended(run_script, EXCHANGES, str(workers), str(rounds))


@pytest.mark.parametrize("hosts", ["aabb", "abab", "abcabc", "aaabbb", "aab", "abc"])
def test_hosts_sum_what_their_workers_have_summed(run_script, hosts):
    ended(run_script, HOSTS, hosts)


@pytest.mark.parametrize("hosts", ["aaaa", "abab"])
def test_workers_that_wait_for_a_lost_one_are_freed(run_script, hosts):
    freed = json.loads(ended(run_script, ENDS, "12", hosts).splitlines()[-1])
    assert len(freed) == 12 * 3
    assert max(freed) < 2.0


@pytest.mark.slow
@pytest.mark.timed
@pytest.mark.timeout(300)
@pytest.mark.parametrize("hosts", ["aaaa", "aabb"])
def test_a_hundred_lost_workers_block_nobody_for_50_milliseconds(run_script, hosts):
    said = ended(run_script, ENDS, "100", hosts, seconds=280)
    freed = sorted(json.loads(said.splitlines()[-1]))
    print(f"freed after {freed[150] * 1e3:.2f} ms (median), {freed[-1] * 1e3:.2f} ms (longest)")
    assert len(freed) == 300
    assert freed[-1] < 0.05


def test_what_is_not_finite_is_found():
    memory = memoryview(mmap.mmap(-1, room(4096, 1)))
    assert len(memory) % mmap.PAGESIZE == 0
    alone = SharedSum(memory, 0, 1, lambda: None)
    for dtype in SUMMABLE:
        vector = torch.arange(3000).to(dtype)
        before = vector.clone()
        assert alone.average(vector)
        assert torch.equal(vector, before)
        vector[-1] = float("nan")
        assert not alone.average(vector)
    assert not alone.average(torch.full((100,), 3e38)), "not known: the sum is too large"


class Store:
    """A store of one process."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode("ascii")

    def get(self, key: str) -> bytes:
        return self.values[key]


def test_memory_is_used_only_if_all_have_mapped_it(monkeypatch):
    store = Store()
    maps = []

    def another(found: bool) -> bool:
        maps.append(agree(store, 1, 4096, lambda own: own and found))
        return found and maps[-1] is not None

    first = agree(store, 0, 4096, another)
    assert first is not None
    first[100] = 7
    assert maps[-1] is not None
    assert maps[-1][100] == 7
    pid, descriptor, token = store.get("place").decode().split()
    store.set("place", f"{pid} {descriptor} {token[::-1]}")
    assert agree(store, 1, 4096, lambda own: own) is None, "closed, and of another process"
    monkeypatch.setattr(sums, "can_wait", lambda: False)
    assert agree(store, 0, 4096, lambda own: own) is None
    assert store.get("place") == b"nowhere"
