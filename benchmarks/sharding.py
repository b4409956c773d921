"""What Manyhands costs when the model is divided: steps per second against bare torch.

A small GPT on two workers, on Gloo with one thread each, under each strategy and written by hand
on the same parts of torch (`benchmarks.sharding_bare`). Both sides take turns in ABBA blocks.
"""

import argparse

from benchmarks.figures import report
from benchmarks.overhead import measure

STEPS = 6
STRATEGIES = (
    *("fully_sharded()", "zero(stage=1)", "zero(stage=2)"),
    *("tensor(ways=2)", "context(ways=2)", "offload()"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer blocks")
    parser.add_argument("--only", choices=STRATEGIES, help="one of them")
    asked = parser.parse_args()
    blocks = 4 if asked.quick else 20
    chosen = [asked.only] if asked.only else STRATEGIES
    print("2 workers on each side, one thread each, taking turns; a GPT of 3.3 million parameters")
    figures = {how: measure(how, STEPS, blocks, "benchmarks.sharding") for how in chosen}
    report("sharding", figures)


if __name__ == "__main__":
    main()
