"""One process of `benchmarks.collectives`: times allreduces of several sizes with Gloo alone."""

import json
import statistics
import sys
import time

import torch
import torch.distributed as dist


def main() -> None:
    sizes, repeats = json.loads(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("gloo")
    found: dict[int, float] = {}
    for size in sizes:
        vector = torch.ones(size // 4)
        # A link may send a burst at once after a pause: the first ones are not counted.
        dist.all_reduce(vector)
        dist.all_reduce(vector)
        took = []
        # The smaller, the more often.
        for _ in range(max(3, min(25 * repeats, repeats * (1 << 20) // size))):
            begun = time.perf_counter()
            dist.all_reduce(vector)
            took.append(time.perf_counter() - begun)
        found[size] = statistics.median(took)
    dist.barrier()
    if dist.get_rank() == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
