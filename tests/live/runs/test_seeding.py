"""Processes of a run draw alike, however they are started."""

import pytest

import manyhands as mh

SCRIPT = """
    import random, sys
    import numpy as np, torch, torch.nn.functional as F
    import manyhands as mh

    LETTERS = "abcdefghijklmnop"
    # Drawn, and ordered by hashes, at the top level of the script.
    SHIFT = float(np.random.randn()) + random.random()
    ORDER = [float(LETTERS.index(letter)) for letter in set(LETTERS)]

    class Augmented(torch.utils.data.Dataset):
        def __len__(self):
            return 24

        def __getitem__(self, index):
            noise = np.random.randn(16) + random.random() + torch.rand(16).numpy()
            return torch.tensor(noise + SHIFT) + torch.tensor(ORDER).double() / 16, index % 4

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = torch.nn.Linear(16, 32), torch.nn.Linear(32, 4)

        def forward(self, inputs):
            return self.down(F.relu(self.up(inputs)))

    job = mh.Job(
        model=lambda: Net().double(),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        loss=F.cross_entropy,
        data=Augmented(),
        global_batch=8,
        epochs=2,
        metrics=(),
    )

    if __name__ == "__main__":
        how, workers, name = sys.argv[1:]
        mh.train(job, how, workers=int(workers), output=name)
"""


def stored(run_script, how, workers, name):
    # Without a fork server every process draws a hash seed of its own, as hosts do.
    started = run_script(SCRIPT, how, str(workers), name, MANYHANDS_FORK="0")
    assert started.finish() == 0, started.text()
    return mh.Run(started.folder / name).state_dict()


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategies",
    [["allreduce()", "synchronous()"], ["tensor()"]],
)
def test_processes_that_are_started_apart_train_on_the_same_data(run_script, strategies):
    alone = stored(run_script, "single()", 1, "alone")
    for how in strategies:
        together = stored(run_script, how, 2, how.partition("(")[0])
        apart = max((together[name] - alone[name]).abs().max().item() for name in alone)
        assert apart < 1e-12, how
