"""Models that are not a plain stack of layers, under every placement: trained as on one worker.

A placement may refuse a model, in words and before anything is started; it may not fail later, and
may not train it differently.
"""

import pytest

from manyhands.placements import ALL

SCRIPT = """
    import json, sys
    from collections import OrderedDict
    import torch, torch.nn.functional as F
    from torch import nn
    import forked
    from manyhands.job import Job
    from manyhands.models import GPT
    from manyhands.strategies import strategy

    workers, kind, strategies = map(json.loads, sys.argv[1:])
    torch.set_default_dtype(torch.float64)

    def plain():
        return GPT(vocabulary=20, width=16, layers=2, heads=2, length=8)

    def tied():
        model = plain()
        model.head.logits.weight = model.embedding.token.weight
        return model

    def tied_between_blocks():
        model = plain()
        model.block2.mlp.up.weight = model.block1.mlp.up.weight
        return model

    def frozen():
        model = plain()
        model.embedding.requires_grad_(False)
        model.block1.mlp.up.bias.requires_grad_(False)
        model.head.norm.weight.requires_grad_(False)
        return model

    def frozen_block():
        model = plain()
        model.block1.requires_grad_(False)
        return model

    def shared_module():
        model = plain()
        model.block2 = model.block1
        return model

    def shared_inside():
        model = plain()
        model.block2.mlp = model.block1.mlp
        return model

    class Holding(nn.Module):
        # A layer with state of every type that a file can hold, which it reads and writes.
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(16))
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))
            self.register_buffer("key", torch.arange(4, dtype=torch.uint8))
            self.register_buffer("mask", torch.tensor([True, False] * 8))
            self.register_buffer("brief", torch.full((3,), 0.5, dtype=torch.bfloat16))
            self.register_buffer("nothing", torch.zeros(0, 3))
            self.register_buffer("none", None)
            self.register_buffer("unsaved", torch.full((16,), 2.0), persistent=False)

        def forward(self, stream):
            return stream + self.scale * self.mask * self.unsaved * 0.1

    def buffers():
        parts = dict(plain().named_children())
        head = parts.pop("head")
        return nn.Sequential(OrderedDict(parts, holding=Holding(), head=head))

    class Counting(nn.Module):
        # Keras keeps the state of a generator, and every variable, as a parameter.
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(16))
            self.state = nn.Parameter(torch.arange(4, dtype=torch.uint8), requires_grad=False)
            self.count = nn.Parameter(torch.zeros((), dtype=torch.int64), requires_grad=False)

        def forward(self, stream):
            return stream * self.scale + self.state.sum() * 0.01

    def counting_parameters():
        parts = dict(plain().named_children())
        head = parts.pop("head")
        return nn.Sequential(OrderedDict(parts, counting=Counting(), head=head))

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.temperature = nn.Parameter(torch.tensor(1.5))

        def forward(self, stream):
            return stream * self.temperature

    def a_number():
        parts = dict(plain().named_children())
        head = parts.pop("head")
        return nn.Sequential(OrderedDict(parts, scaled=Scaled(), head=head))

    def without_parameters():
        parts = dict(plain().named_children())
        head = parts.pop("head")
        between = nn.Sequential(nn.Identity(), nn.Dropout(0.0))
        return nn.Sequential(OrderedDict(parts, between=between, head=head))

    source = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 20, (24, 9), generator=source)
    data = torch.utils.data.TensorDataset(tokens[:, :-1], tokens[:, 1:])
    job = Job(
        model=globals()[kind],
        optimizer=lambda model: torch.optim.AdamW(
            [one for one in model.parameters() if one.requires_grad], lr=1e-2
        ),
        loss=F.cross_entropy,
        data=data,
        validation=torch.utils.data.TensorDataset(tokens[:5, :-1], tokens[:5, 1:]),
        metrics=(),
        global_batch=6,
        # The last batch has one sample, so that a worker has none.
        samples=19,
        seed=5,
    )

    def work(store, rank, size):
        alone = forked.train(job, "single()", store, 0, 1) if rank == 0 else None
        store.set("alone", "") if rank == 0 else store.get("alone")
        found = {}
        for how in strategies:
            try:
                strategy(how).check_job(job, size)
            except ValueError as error:
                found[how] = f"refused: {error}"
                continue
            losses, values, state = forked.train(job, how, store, rank, size)
            if rank == 0:
                assert state.keys() == alone[2].keys(), state.keys() ^ alone[2].keys()
                for name, tensor in state.items():
                    assert tensor.dtype == alone[2][name].dtype, name
                    assert tensor.shape == alone[2][name].shape, name
                found[how] = max(
                    *(abs(a / b - 1) for a, b in zip(losses, alone[0], strict=True)),
                    abs(values["loss"] - alone[1]["loss"]),
                    *(
                        (state[name].double() - alone[2][name].double()).abs().max().item()
                        for name in state
                        if state[name].numel()
                    ),
                )
        return found

    if __name__ == "__main__":
        forked.run(work, workers)
"""

STRATEGIES = {
    "allreduce": ["allreduce()"],
    "context": ["context(ways=2)"],
    "fully_sharded": ["fully_sharded()", "fully_sharded(reshard_after_forward=false)"],
    "hybrid": ["hybrid(shard=2)", "hybrid(tensor=2)", "hybrid(data=2)"],
    "offload": ["offload()"],
    "pipeline": ["pipeline(microbatches=2)"],
    "place": ['place(["block1 on 0", "head on 1"])'],
    "single": [],
    "tensor": ["tensor(ways=2)", "tensor(ways=2, samples=own)"],
    "zero": ["zero(stage=1)", "zero(stage=2)", "zero(stage=3)"],
}
"""On two workers, by placement; `single` is what they are compared with."""

EVERY_DAY = ["tied"]
KINDS = [
    *EVERY_DAY,
    *("buffers", "a_number", "shared_inside", "counting_parameters"),
    *("plain", "tied_between_blocks", "frozen", "frozen_block", "shared_module"),
    "without_parameters",
]


def test_every_placement_takes_part():
    assert {placement.name for placement in ALL} == set(STRATEGIES)


PLACED = STRATEGIES["place"][0]
SHARDED = [*STRATEGIES["fully_sharded"], "offload()", "zero(stage=2)", "zero(stage=3)"]
SPLIT = [*STRATEGIES["tensor"], "hybrid(tensor=2)"]
REFUSED: dict[str, dict[str, str]] = {
    "tied": {
        PLACED: "are one parameter, in no placed module and head: place both on the same",
        "pipeline(microbatches=2)": "is used by embedding and by head, which stay together",
    },
    "tied_between_blocks": {PLACED: "are one parameter, in block1 and no placed module"},
    "shared_module": {
        "context(ways=2)": "has no repeated modules: name the module before which",
        **dict.fromkeys(
            SPLIT, "found no layers to split in GPT: block1.attention.out: it is called"
        ),
    },
    "shared_inside": {PLACED: "are one parameter, in block1 and no placed module"},
    "a_number": dict.fromkeys(
        [*SHARDED, "hybrid(shard=2)", "hybrid(data=2)"],
        "scaled.temperature is a tensor without dims: make it a tensor of one element",
    ),
}
"""By kind of model and strategy, what a refusal says."""


@pytest.mark.parametrize(
    "kind",
    [kind if kind in EVERY_DAY else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS],
)
def test_is_trained_as_on_one_worker_or_refused(fork, kind):
    strategies = [how for some in STRATEGIES.values() for how in some]
    found = fork(SCRIPT, 2, kind, strategies)[0]
    assert list(found) == strategies
    refused = REFUSED.get(kind, {})
    for how, apart in found.items():
        if how in refused:
            assert str(apart).startswith("refused: "), how
            assert refused[how] in apart, how
        else:
            assert isinstance(apart, float), f"{how}: {apart}"
            assert apart < 1e-10, how
