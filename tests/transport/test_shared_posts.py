"""Tensors that workers of one host send to each other in memory: each arrives once, as it was."""

import pytest

POSTS = """
    import random, sys, time
    import torch
    import forked
    from manyhands.transport.shared import posts

    def value(seed, sender, to, number):
        "What a worker sends: of any type and length, also of none."
        draw = random.Random(f"{seed} {sender} {to} {number}")
        length = draw.choice([0, 1, 3, 16, 100, 5000, 20000])
        dtype = draw.choice([torch.float32, torch.float64, torch.bfloat16, torch.int64])
        generator = torch.Generator().manual_seed(draw.randrange(2**31))
        return torch.randint(-100, 100, (length,), generator=generator).to(dtype)

    def count(seed, sender, to):
        "How many tensors a worker sends to another one in a round."
        return random.Random(f"{seed} {sender} {to} n").randrange(12)

    def work(store, rank, size):
        group = forked.group_of(store, rank, size)
        made = group.shared_posts()
        others = [each for each in range(size) if each != rank]
        for seed in range(rounds):
            draw = random.Random(f"{seed} {rank}")
            todo = [(to, number) for to in others for number in range(count(seed, rank, to))]
            wanted = [(one, number) for one in others for number in range(count(seed, one, rank))]
            draw.shuffle(todo)
            draw.shuffle(wanted)
            leaving = []
            for to, number in todo:
                # Tags come again in later rounds, and are sent in another order than received.
                leaving.append(made.send(value(seed, rank, to, number), to, number))
                if draw.random() < 0.2:
                    time.sleep(draw.random() * 0.002)
            for source, number in wanted:
                right = value(seed, source, rank, number)
                found = torch.empty_like(right)
                made.receive(found, source, number).wait()
                assert torch.equal(found, right), (seed, source, number)
            for one in leaving:
                one.wait()
        assert made.exchanged[rank] == made.received[rank] == 0
        group.close()
        return [sum(made.exchanged), sum(made.received)]

    if __name__ == "__main__":
        workers, rounds, posts.RING = map(int, sys.argv[1:])
        posts._LINES = posts.RING // 64
        forked.run(work, workers)
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
def test_each_tensor_arrives_once_and_as_it_was(fork, workers, rounds, ring):
    # Rings so small that tensors wait for room, and wrap around many times.
    sent, received = map(sum, zip(*fork(POSTS, workers, rounds, ring), strict=True))
    assert sent == received > 0


@pytest.mark.slow
@pytest.mark.parametrize("ring", [1 << 20, 1 << 22])
def test_many_rounds_with_rings_of_any_size(fork, ring):
    sent, received = map(sum, zip(*fork(POSTS, 3, 1000, ring), strict=True))
    assert sent == received > 0


@pytest.mark.parametrize("how", ["killed", "freed"])
def test_a_worker_that_waits_for_a_lost_one_is_freed(fork, how):
    waited = fork(LOST, 2, how)[0]
    assert waited < 0.5
