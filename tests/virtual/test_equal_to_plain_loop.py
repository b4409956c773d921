"""One virtual worker is a plain PyTorch loop, to rounding in float64."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn
from torch.utils.data import TensorDataset

from manyhands.job import Job
from manyhands.protocols import Asynchronous
from manyhands.sampling.permutation import permutation

SAMPLES, BATCH, EPOCHS, SEED = 210, 30, 3, 11


class Net(nn.Module):
    """A tied and a frozen parameter, batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 12)
        self.norm = nn.BatchNorm1d(12)
        self.second = nn.Linear(12, 12)
        self.second.weight = self.first.weight
        self.frozen = nn.Linear(12, 5)
        self.frozen.requires_grad_(False)
        self.double()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.norm(self.first(inputs)).tanh()
        return self.frozen(self.second(hidden))


def optimizer(kind: str, model: nn.Module) -> torch.optim.Optimizer:
    """Two parameter groups with rates of their own."""
    weights = [p for name, p in model.named_parameters() if name.endswith("weight")]
    biases = [p for name, p in model.named_parameters() if name.endswith("bias")]
    groups = [{"params": weights}, {"params": biases, "lr": 0.02}]
    if kind == "sgd":
        return torch.optim.SGD(groups, lr=0.05, momentum=0.9)
    return torch.optim.AdamW(groups, lr=0.003, weight_decay=0.1)


def a_job(kind: str, batch: int) -> Job:
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(SAMPLES, 12, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, 5, (SAMPLES,), generator=generator)
    data = TensorDataset(inputs, targets)
    return Job(
        model=Net,
        optimizer=lambda model: optimizer(kind, model),
        loss=F.cross_entropy,
        data=data,
        validation=data,
        metrics=["accuracy"],
        global_batch=batch,
        epochs=EPOCHS,
        seed=SEED,
    )


def by_hand(kind: str, batch: int) -> dict[str, torch.Tensor]:
    """The same training in plain PyTorch: the oracle, sharing only the order of the samples."""
    inputs, targets = a_job(kind, batch).data.tensors  # type: ignore[attr-defined]
    torch.manual_seed(SEED)
    model = Net()
    steps = optimizer(kind, model)
    rates = [group["lr"] for group in steps.param_groups]
    for epoch in range(EPOCHS):
        order = permutation(SAMPLES, SEED, epoch)
        for start in range(0, SAMPLES, batch):
            indices = order[start : start + batch]
            weight = len(indices) / batch
            steps.zero_grad()
            F.cross_entropy(model(inputs[indices]), targets[indices]).backward()
            for group, rate in zip(steps.param_groups, rates, strict=True):
                group["lr"] = rate * weight
            steps.step()
    return dict(model.state_dict())


@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
@pytest.mark.parametrize("batch", [30, 32])
def test_one_worker_equals_plain_pytorch(virtually, kind: str, servers: int, batch: int) -> None:
    # 210 = 7 · 30 = 6 · 32 + 18: with 32 the last batch is short and weighs 18/32.
    done = virtually(a_job(kind, batch), Asynchronous(servers=servers), workers=1)
    oracle, state = by_hand(kind, batch), done.run.state_dict()
    assert state.keys() == oracle.keys()
    for name, expected in oracle.items():
        worst = (state[name] - expected).abs().max().item()
        assert worst <= 1e-9, f"{name} is {worst} away from plain PyTorch"
    assert done.world.versions == (EPOCHS * -(-SAMPLES // batch),) * servers
    assert done.run.samples == EPOCHS * SAMPLES


def test_its_metrics_are_those_of_the_model_that_it_leaves(virtually) -> None:
    job = a_job("sgd", 30)
    done = virtually(job, Asynchronous(servers=2), workers=3)
    model = Net().eval()
    model.load_state_dict(done.run.state_dict())
    inputs, targets = job.data.tensors  # type: ignore[attr-defined]
    with torch.no_grad():
        outputs = model(inputs)
    assert done.run.metrics["loss"] == pytest.approx(F.cross_entropy(outputs, targets).item())
    right = (outputs.argmax(1) == targets).double().mean().item()
    assert done.run.metrics["accuracy"] == pytest.approx(right)


def test_how_parameters_are_cut_changes_nothing(virtually) -> None:
    # In lock step by equal times, whatever the servers; cuts and messages are exact.
    runs = [virtually(a_job("sgd", 30), Asynchronous(servers=s), workers=3) for s in (1, 2, 3)]
    assert len({done.run.parameters_digest for done in runs}) == 1
