"""A compiled model under protocols, on a virtual clock: the steps of one that is not compiled."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.nn import functional
from torch.utils.data import TensorDataset

import manyhands as mh
from manyhands.parameters.optional.compilation import check_toolchain

SOURCE = torch.Generator().manual_seed(1)
DATA = TensorDataset(
    torch.randn(22, 1, 6, 6, generator=SOURCE, dtype=torch.float64),
    torch.randint(0, 3, (22,), generator=SOURCE),
)


def model() -> nn.Module:
    # Batch norm has buffers, which the compiled call changes in place.
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    ).double()


JOB = mh.Job(
    model=model,
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    loss=functional.cross_entropy,
    data=DATA,
    validation=DATA,
    global_batch=8,
    epochs=2,
)


@pytest.fixture(scope="module", autouse=True)
def kernels(tmp_path_factory):
    try:
        check_toolchain(replace(JOB, compile=True), ["cpu"])
    except ValueError as error:
        pytest.skip(str(error))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("kernels")))
        # Precompiled headers pay for many kernels only.
        patch.setattr("torch._inductor.config.cpp_cache_precompile_headers", False)
        yield
    torch.compiler.reset()


def same_as_plain(folder, job, strategy):
    plain = mh.simulate(job, strategy, workers=2, output=folder / "plain")
    graphs = counters["stats"]["unique_graphs"]
    compiled = mh.simulate(
        replace(job, compile=True), strategy, workers=2, output=folder / "compiled"
    )
    assert counters["stats"]["unique_graphs"] > graphs, "nothing was compiled"
    expected, found = plain.state_dict(), compiled.state_dict()
    assert list(found) == list(expected)
    assert max((found[name] - expected[name]).abs().max() for name in expected) < 1e-9
    assert compiled.metrics == pytest.approx(plain.metrics, abs=1e-9)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("default")
def test_trains_as_without_compilation(tmp_path):
    small = replace(
        JOB,
        model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 3)).double(),
        validation=None,
        epochs=None,
        samples=16,
    )
    same_as_plain(tmp_path, small, "synchronous(servers=2)")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "strategy",
    ["synchronous(servers=2)", "ssp(staleness=2)", "easgd()", "gossip()", "ensemble()"],
)
@pytest.mark.filterwarnings("default")
def test_trains_as_without_compilation_with_short_batches_and_evaluations(tmp_path, strategy):
    same_as_plain(tmp_path, JOB, strategy)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("inside", [True, False], ids=["in the model", "in the objective"])
def test_targets_that_are_ignored_are_counted_in_compiled_models(tmp_path, inside):
    """The weight of a mean is found in a call of cross_entropy, wherever it is."""

    class Inside(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3).double()

        def forward(self, inputs, targets=None):
            outputs = torch.tanh(self.layer(inputs)).flatten(0, 1)
            return outputs if targets is None else functional.cross_entropy(outputs, targets)

    def objective(module, batch):
        inputs, targets = batch
        if inside:
            return module(inputs, targets.flatten())
        return functional.cross_entropy(module(inputs), targets.flatten())

    targets = torch.randint(0, 3, (24, 4), generator=SOURCE)
    targets[::3, 1:] = -100
    data = TensorDataset(torch.randn(24, 4, 6, dtype=torch.float64), targets)
    job = mh.Job(
        model=Inside,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        objective=objective,
        data=data,
        global_batch=8,
        epochs=2,
    )
    states = [
        mh.simulate(
            replace(job, compile=compiles),
            "synchronous()",
            workers=workers,
            output=tmp_path / f"{workers} {compiles}",
        ).state_dict()
        for workers, compiles in ((1, False), (3, True))
    ]
    assert max((states[0][name] - states[1][name]).abs().max() for name in states[0]) < 1e-9
