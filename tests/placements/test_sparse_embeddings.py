"""Embeddings with sparse gradients: exact under single and allreduce, refused elsewhere."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

import manyhands as mh
from manyhands.parameters.optional.checks import check_optional
from manyhands.strategies import strategy

SCRIPT = """
    import json, sys
    from dataclasses import replace
    import torch, torch.nn.functional as F
    from torch import nn
    import forked
    from manyhands.job import Job

    workers, optimizer = map(json.loads, sys.argv[1:])
    torch.set_default_dtype(torch.float64)
    source = torch.Generator().manual_seed(0)
    words = torch.randint(0, 50, (23, 5), generator=source)
    data = torch.utils.data.TensorDataset(words, torch.randint(0, 3, (23,), generator=source))

    class Bag(nn.Module):
        def __init__(self, sparse):
            super().__init__()
            self.table, self.last = nn.Embedding(50, 6, sparse=sparse), nn.Linear(6, 3)

        def forward(self, words):
            return self.last(self.table(words).mean(1))

    class Both(torch.optim.Optimizer):
        def __init__(self, model):
            self.parts = [
                torch.optim.SparseAdam([model.table.weight], lr=0.05),
                torch.optim.SGD(model.last.parameters(), lr=0.1),
            ]
            groups = [group for part in self.parts for group in part.param_groups]
            super().__init__(groups, {})
            for part, groups in zip(self.parts, (self.param_groups[:1], self.param_groups[1:])):
                part.param_groups = groups

        def step(self, closure=None):
            for part in self.parts:
                part.step()

    optimizers = {
        "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        "SparseAdam": Both,
    }
    job = Job(
        model=lambda: Bag(True),
        optimizer=optimizers[optimizer],
        loss=F.cross_entropy,
        data=data,
        global_batch=7,
        epochs=2,
    )

    def work(store, rank, size):
        given = job if optimizer == "SparseAdam" else replace(job, model=lambda: Bag(False))
        alone = forked.train(given, "single()", store, 0, 1)[2] if rank == 0 else None
        store.set("alone", "") if rank == 0 else store.get("alone")
        found = {}
        for how in ["single()"] if size == 1 else ["allreduce()"]:
            state = forked.train(job, how, store, rank, size)[2]
            if rank == 0:
                found[how] = max((state[k] - alone[k]).abs().max().item() for k in alone)
        return found

    if __name__ == "__main__":
        forked.run(work, workers)
"""


@pytest.mark.parametrize("optimizer", [pytest.param("SGD", marks=pytest.mark.slow), "SparseAdam"])
@pytest.mark.parametrize("workers", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_n_workers_equal_one(fork, workers, optimizer):
    for how, apart in fork(SCRIPT, workers, optimizer)[0].items():
        assert apart < 1e-9, how


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.EmbeddingBag(50, 6, sparse=True), nn.Linear(6, 3)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.last(self.table(words))


JOB = mh.Job(
    model=Bag,
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    loss=functional.cross_entropy,
    data=[(torch.zeros(5, dtype=torch.int64), 0)] * 8,
    global_batch=8,
    epochs=1,
)


@pytest.mark.parametrize(
    "text",
    ["synchronous()", "gossip()", "fully_sharded()", "zero(stage=1)", "allreduce(codec=int8())"],
)
def test_other_strategies_refuse_it_and_name_the_layer(text):
    words = (
        r"the layer 'table', EmbeddingBag\(sparse=True\), does not work under .*use sparse=False"
    )
    with pytest.raises(ValueError, match=words):
        check_optional(strategy(text), JOB, ["cpu"])


def test_a_simulation_refuses_it(tmp_path):
    with pytest.raises(ValueError, match=r"the layer 'table'.*use sparse=False"):
        mh.simulate(JOB, "asynchronous()", workers=2, output=tmp_path / "run")


def test_norms_of_sparse_gradients_are_refused():
    with pytest.raises(ValueError, match=r"whose norm torch does not compute.*or leave out clip"):
        check_optional(strategy("allreduce()"), replace(JOB, clip=1.0), ["cpu"])
    check_optional(strategy("allreduce()"), JOB, ["cpu"])
