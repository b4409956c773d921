"""The same seed gives the same bits on real processes, where workers wait for each other."""

import re

import pytest

from manyhands.protocols import ALL
from manyhands.strategies import strategy

JOB = """
    import sys
    import torch, torch.nn.functional as F
    import manyhands as mh

    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(1501, 32, generator=generator)
    targets = torch.randint(0, 10, (1501,), generator=generator)

    job = mh.Job(
        model=lambda: mh.models.MLP(inputs=32, hidden=(256, 256)),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5),
        loss=F.cross_entropy,
        data=torch.utils.data.TensorDataset(inputs, targets),
        global_batch=40,
        epochs=2,
        metrics=(),
    )

    if __name__ == "__main__":
        for output in ("first", "second"):
            print(mh.train(job, sys.argv[1], workers=4, output=output).summary())
"""
LOCKSTEP = {
    "synchronous": ["synchronous()", "synchronous(servers=2)"],
    "softsync": ["softsync(wait_for=4)"],
    "ssp": ["ssp(staleness=0)"],
    "averaging": ["averaging(every=2)"],
    "local_sgd": ["local_sgd(every=4, warmup=3)"],
    "diloco": ["diloco(every=5)"],
    "hierarchical": [
        "hierarchical(outer=diloco(every=3))",
        "hierarchical(outer=averaging())",
        "hierarchical(outer=synchronous(), islands=3)",
    ],
    "easgd": ["easgd()", "easgd(order=round_robin)"],
    "gossip": ["gossip()", "gossip(graph=exponential)", "gossip(graph=random_pairs)"],
}
"""How protocols are written that are lockstep, where their names alone would not say it."""
EVERY = [
    text
    for cls in ALL
    for text in LOCKSTEP.get(cls.name, [f"{cls.name}()"])
    if strategy(text).lockstep
]
EVERYDAY = ["synchronous(servers=2)", "gossip()"]


def trained_twice(run_script, text: str) -> None:
    started = run_script(JOB, text)
    assert started.finish(280) == 0, started.text()
    digests = re.findall(r"parameters +([0-9a-f]{64})", started.text())
    assert len(digests) == 2, started.text()
    assert digests[0] == digests[1], started.text()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("text", EVERYDAY)
def test_two_runs_with_one_seed_end_with_the_same_parameters(run_script, text):
    trained_twice(run_script, text)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("text", [text for text in EVERY if text not in EVERYDAY])
def test_so_do_two_runs_under_every_strategy_in_lockstep(run_script, text):
    trained_twice(run_script, text)
