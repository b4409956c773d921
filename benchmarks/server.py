"""How fast the parameter servers are: one exchange, and whole asynchronous training.

Exchange: push, apply, pull with a given gradient, against the best simple server on bare ZeroMQ.
Three sides (bare, ours, ours without its journal) are alive all the time and take turns in
palindromic blocks; figures are medians over blocks of ours / bare, with a 95 % interval.

Training: updates per second of both workers, against parameter servers on torch RPC, torchft and
Ray. All are alive at once and take turns of a second or so in rotated order. The peers run in the
interpreter that MANYHANDS_PEERS_PYTHON names, by default this one.
"""

import argparse
import signal
import sys

import torch

from benchmarks import server_exchange, server_training
from benchmarks.figures import report
from benchmarks.peers.work import BATCH


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument("--only", choices=("exchange", "training"), help="one of the two parts")
    given = parser.parse_args()
    # Whoever ends this benchmark ends what it has started, and its folders go.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    # Processes are forked from this one; one thread each, and none that they would miss.
    torch.set_num_threads(1)
    print("2 workers and 1 or 2 servers, one thread each, share this machine's cores.")
    figures: dict[str, object] = {}
    if given.only != "training":
        blocks, share = (2, 8) if given.quick else (10, 1)
        print("Exchange: push, apply (SGD with momentum) and pull, float32, ipc.")
        print(server_exchange.HEADING)
        figures["exchange"] = {
            f"{size}/{servers}": server_exchange.measure(size, servers, blocks, share)
            for size, servers in server_exchange.TURNS
        }
    if given.only != "exchange":
        rounds, seconds = (3, 0.7) if given.quick else (15, 1.5)
        print(
            f"Training: whole steps, batch {BATCH} per worker, 1 server; updates/s of both workers,"
        )
        print("  median (slowest … fastest turn)")
        figures["training"] = {
            size: server_training.measure(size, rounds, seconds)
            for size in (("85k",) if given.quick else ("85k", "1M"))
        }
    report("server", figures)


if __name__ == "__main__":
    main()
