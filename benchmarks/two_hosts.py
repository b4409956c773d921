"""Two hosts with two workers each: gradients summed within hosts first, against one ring of all.

The job and the sides of `benchmarks.codecs`, in two network namespaces with two workers each, which
are linked by 1 Gbit/s; needs root, or unprivileged user namespaces. The sides are bare DDP on Gloo,
`allreduce(shared_memory=false)`, which is DDP on Gloo as well, and `allreduce()`. Compute is real:
four workers share the machine's cores. The sides run one after the other, in rounds.
"""

import argparse
import os

from benchmarks.codecs import Spread, measure, show
from manyhands.lab.networks.namespaces import NotPermitted, check_permitted

SIDES = {
    "DDP": (True, "none"),
    "allreduce(shared_memory=false)": (False, "allreduce(shared_memory=false)"),
    "allreduce()": (False, "allreduce()"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="1gbit", help="of each host: 1gbit, 1ms")
    parser.add_argument("--rounds", type=int, default=3, help="0 for the short first one alone")
    parser.add_argument("--keep", action="store_true", help="store the figures as results")
    given = parser.parse_args()
    try:
        check_permitted()
    except NotPermitted as error:
        parser.exit(1, f"{error}\n")
    spread = Spread(given.network, workers=4, per_host=2)
    print(f"{spread.words}, on {os.cpu_count()} cores")
    found = measure(SIDES, spread, given.rounds)
    show("two_hosts", found, stores=given.keep)


if __name__ == "__main__":
    main()
