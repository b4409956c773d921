"""How many of eight workers should softsync wait for? A curve with error bars, in one command.

    manyhands compare examples/sweep.py --sweep "softsync(wait_for=1..8)" --strategies synchronous
        --virtual --workers 8 --slow 7:3x --target "accuracy >= 0.85" --output softsync

(on one line) simulates a cluster with real gradients, in which one worker takes three times as
long: the fewer updates a step waits for, the faster it is and the staler its updates are.
`--sweep "workers={4, 8, 16}"` and `--sweep "lr={0.5x, 1x, 2x}"` draw other curves of the same job.
"""

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it

import manyhands as mh

job = mh.Job(
    model=lambda: mh.models.MLP(hidden=[64]),
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
    loss=F.cross_entropy,
    data=mh.data.mnist("train"),
    validation=mh.data.mnist("test"),
    evaluate_every=mh.every(samples=2_000),
    measures=("staleness",),
    global_batch=128,
    samples=8_000,
)
