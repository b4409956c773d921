"""Tensors that workers of one host send to each other in memory: each arrives once, as it was."""

import pytest

FORKED = """
    import mmap, os, random, signal, sys, time
    import torch
    from manyhands.failure import PeerLost
    from manyhands.transport.shared import posts
    from manyhands.transport.shared.posts import SharedPosts, posts_room

    failed = mmap.mmap(-1, 4096)

    def check(_):
        assert not failed[0], "another one failed"

    def value(seed, sender, to, number):
        "What a worker sends: of any type and length, also of none."
        draw = random.Random(f"{seed} {sender} {to} {number}")
        length = draw.choice([0, 1, 3, 16, 100, 5000, 20000])
        dtype = draw.choice([torch.float32, torch.float64, torch.bfloat16, torch.int64])
        generator = torch.Generator().manual_seed(draw.randrange(2**31))
        return torch.randint(-100, 100, (length,), generator=generator).to(dtype)

    def work(memory, workers, rounds, rank):
        made = SharedPosts(memoryview(memory), rank, workers, check)
        for seed in range(rounds):
            draw = random.Random(f"{seed} {rank}")
            others = [each for each in range(workers) if each != rank]
            counts = {
                (one, two): random.Random(f"{seed} {one} {two} n").randrange(12)
                for one in range(workers) for two in range(workers)
            }
            todo = [("send", to, number) for to in others for number in range(counts[rank, to])]
            draw.shuffle(todo)
            wanted = [(source, n) for source in others for n in range(counts[source, rank])]
            draw.shuffle(wanted)
            leaving, coming = [], []
            for kind, to, number in todo:
                # Tags come again in later rounds, and are sent in another order than received.
                sent = value(seed, rank, to, number)
                leaving.append(made.send(sent.clone(), to, number))
                if draw.random() < 0.2:
                    time.sleep(draw.random() * 0.002)
            for source, number in wanted:
                right = value(seed, source, rank, number)
                found = torch.empty_like(right)
                made.receive(found, source, number).wait()
                assert torch.equal(found, right), (seed, source, number)
            for one in leaving:
                one.wait()
        total = sum(made.exchanged)
        assert made.exchanged[rank] == made.received[rank] == 0
        sums = memoryview(failed).cast("Q")
        sums[2 + 2 * rank], sums[3 + 2 * rank] = total, sum(made.received)

    workers, rounds = int(sys.argv[1]), int(sys.argv[2])
    posts.RING = posts.RING if len(sys.argv) < 4 else int(sys.argv[3])
    posts._LINES = posts.RING // 64
    memory = mmap.mmap(-1, posts_room(workers))
    ids = []
    for rank in range(workers):
        pid = os.fork()
        if not pid:
            try:
                work(memory, workers, rounds, rank)
            except BaseException as error:
                failed[0] = 1
                print(type(error).__name__, error, file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        ids.append(pid)
    ended = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ids]
    sums = memoryview(failed).cast("Q")
    sent, received = sum(sums[2 : 2 + 2 * workers : 2]), sum(sums[3 : 3 + 2 * workers : 2])
    assert sent == received > 0
    sys.exit(max(map(abs, ended)))
"""

LOST = """
    import json, os, signal, sys, threading, time
    import torch
    import forked
    from manyhands.failure import PeerLost

    def work(store, rank, size):
        group = forked.group_of(store, rank, size)
        made = group.shared_posts()
        assert made is not None
        found = torch.empty(10)
        if rank == 1:
            made.send(torch.arange(10.0), 0, 7)
            if sys.argv[2] == '"killed"':
                group._sockets[0].shutdown(2)
            return 0.0
        made.receive(found, 1, 7).wait()
        assert torch.equal(found, torch.arange(10.0))
        began = time.monotonic()
        if sys.argv[2] == '"freed"':
            threading.Timer(0.2, group.free).start()
            began += 0.2
        try:
            made.receive(found, 1, 8).wait()
        except PeerLost:
            return time.monotonic() - began
        raise AssertionError("it received what was never sent")

    if __name__ == "__main__":
        forked.run(work, int(sys.argv[1]))
"""


@pytest.mark.parametrize(("workers", "rounds", "ring"), [(2, 60, 1 << 20), (4, 25, 1 << 20)])
def test_each_tensor_arrives_once_and_as_it_was(run_script, workers, rounds, ring):
    # Rings so small that tensors wait for room, and wrap around many times.
    script = run_script(FORKED, str(workers), str(rounds), str(ring))
    assert script.finish(120) == 0, script.text()


@pytest.mark.slow
@pytest.mark.parametrize("ring", [1 << 20, 1 << 22])
def test_many_rounds_with_rings_of_any_size(run_script, ring):
    script = run_script(FORKED, "3", "1500", str(ring))
    assert script.finish(280) == 0, script.text()


@pytest.mark.parametrize("how", ["killed", "freed"])
def test_a_worker_that_waits_for_a_lost_one_is_freed(fork, how):
    waited = fork(LOST, 2, how)[0]
    assert waited < 0.5
