"""A compiled model under placements: the steps of the model that is not compiled."""

import pytest
import torch
from torch.nn import functional

from manyhands.job import Job
from manyhands.parameters.optional.compilation import check_toolchain
from manyhands.strategies import strategy

SCRIPT = """
    import json, sys, warnings
    from dataclasses import replace
    import torch, torch.nn.functional as F
    import forked
    from manyhands.job import Job

    workers, strategies, dtype, whole = map(json.loads, sys.argv[1:])
    torch.set_default_dtype(getattr(torch, dtype))
    source = torch.Generator().manual_seed(0)
    inputs = torch.randn(22, 6, generator=source)
    data = torch.utils.data.TensorDataset(inputs, torch.randint(0, 3, (22,), generator=source))

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)
            self.calls = 0

        def forward(self, inputs):
            if not torch.compiler.is_compiling():
                self.calls += 1
            return self.last(torch.tanh(self.first(inputs)))

    made = []

    def model():
        made.append(Net())
        return made[-1]

    # The last batch of an epoch is cut, and some workers have fewer samples in it than others.
    job = Job(
        model=model,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        loss=F.cross_entropy,
        data=data,
        global_batch=6,
        **({"validation": data, "epochs": 2} if whole else {"samples": 12}),
    )

    def work(store, rank, size):
        # Warnings of the compiler are about the processor, not about this model.
        warnings.simplefilter("default")
        alone = forked.train(job, "single()", store, 0, 1) if rank == 0 else None
        store.set("alone", "") if rank == 0 else store.get("alone")
        found = {}
        for how in strategies:
            made.clear()
            _, values, state = forked.train(replace(job, compile=True), how, store, rank, size)
            if rank == 0:
                assert list(state) == list(alone[2])
                found[how] = {
                    "parameters": max((state[k] - alone[2][k]).abs().max().item() for k in state),
                    "values": max((abs(values[k] - alone[1][k]) for k in values), default=0),
                    "calls": sum(one.calls for one in made),
                }
        return found

    if __name__ == "__main__":
        forked.run(work, workers)
"""

JOB = Job(
    model=lambda: torch.nn.Linear(4, 4),
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    loss=functional.mse_loss,
    data=[(torch.zeros(4), torch.zeros(4))] * 8,
    global_batch=8,
    epochs=1,
    compile=True,
)


def has_tools() -> bool:
    try:
        check_toolchain(JOB, ["cpu"])
    except ValueError:
        return False
    return True


needs_tools = pytest.mark.skipif(not has_tools(), reason="there is no C++ compiler on this host")


@needs_tools
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("workers", "strategies", "dtype", "limit", "whole"),
    [
        (1, ["single()"], "float32", 1e-6, False),
        (1, ["single()"], "float64", 1e-9, True),
        (2, ["allreduce()", "zero(stage=1)"], "float64", 1e-9, True),
    ],
)
def test_trains_as_without_compilation(
    fork, monkeypatch, tmp_path, workers, strategies, dtype, limit, whole
):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "kernels"))
    monkeypatch.setenv("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")
    found = fork(SCRIPT, workers, strategies, dtype, whole, seconds=850)[0]
    assert list(found) == strategies
    for how, one in found.items():
        assert one["parameters"] < limit, how
        assert one["values"] < limit, how
        assert one["calls"] == 0, f"{how}: the model was called and not compiled"


@pytest.mark.parametrize(
    "text",
    [
        *("fully_sharded()", "zero(stage=2)", "offload()", "tensor()", "context()"),
        *("hybrid(shard=2)", "pipeline()", 'place(["a on 0"])'),
    ],
)
def test_strategies_that_divide_the_model_refuse_it(text):
    with pytest.raises(ValueError, match=r"Job\(compile=True\) does not work under .*allreduce"):
        strategy(text).check_job(JOB, 2)


def test_a_codec_that_replaces_layers_refuses_it():
    with pytest.raises(ValueError, match=r"factors\(\) computes in the place of linear layers"):
        strategy("allreduce(codec=factors())").check_job(JOB, 2)
    strategy("allreduce(codec=int8())").check_job(JOB, 2)


def test_a_missing_compiler_is_named(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ValueError, match="'no-such-compiler' was not found: install g"):
        check_toolchain(JOB, ["cpu", "cpu"])
