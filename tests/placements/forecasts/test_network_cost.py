"""Work, depth and memory of models, against figures that were computed by hand."""

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import manyhands as mh
from manyhands.costs import NetworkCost, WorkDepth
from manyhands.parameters.initial.deferred import on_meta
from manyhands.placements.forecasts.network_cost import job_network_cost, network_cost


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def by_layer(found: NetworkCost) -> dict[tuple[str, str], tuple[int, int]]:
    return {(one.name, one.kind): (one.cost.work, one.cost.depth) for one in found.layers}


def test_lenet() -> None:
    n = 3
    found = network_cost(mh.models.LeNet, meta(n, 1, 28, 28))
    assert by_layer(found) == {
        # Elements of the result, times two operations for each term; 1 + ⌈log2(terms + bias)⌉.
        ("features.0", "convolution"): (n * 32 * 24 * 24 * 2 * 25, 1 + 5),
        ("features.1", "element-wise"): (n * 32 * 24 * 24, 1),
        ("features.2", "pooling"): (n * 32 * 12 * 12 * 3, 2),
        ("features.3", "convolution"): (n * 64 * 8 * 8 * 2 * 32 * 25, 1 + 10),
        ("features.4", "element-wise"): (n * 64 * 8 * 8, 1),
        ("features.5", "pooling"): (n * 64 * 4 * 4 * 3, 2),
        ("classifier.1", "fully connected"): (n * 1024 * 2 * 1024, 1 + 11),
        ("classifier.2", "element-wise"): (n * 1024, 1),
        ("classifier.3", "fully connected"): (n * 10 * 2 * 1024, 1 + 11),
    }
    assert found.cost == WorkDepth(n * 9_633_280, 48)
    assert found.parameters == 1_111_946
    assert found.assumed == ()


def test_memory_of_lenet() -> None:
    n = 3
    layers = {one.name: one for one in network_cost(mh.models.LeNet, meta(n, 1, 28, 28)).layers}
    first = layers["features.0"]
    assert first.weights == first.weight_gradients == 4 * (32 * 25 + 32)
    assert first.outputs == first.output_gradients == 4 * n * 32 * 24 * 24
    assert layers["features.2"].outputs == 4 * n * 32 * 12 * 12
    assert layers["features.2"].memory == 2 * 4 * n * 32 * 12 * 12
    assert sum(one.weights for one in layers.values()) == 4 * 1_111_946


@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (mh.models.LeNet, meta(2, 1, 28, 28)),
        (lambda: nn.Sequential(nn.Conv2d(4, 8, 3, groups=2, stride=2)), meta(2, 4, 9, 9)),
        (lambda: nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3)), meta(6, 4, 5)),
    ],
)
def test_products_are_as_many_as_torch_counts(make, inputs) -> None:
    with FlopCounterMode(display=False) as counter:
        on_meta(make)(inputs)
    layers = network_cost(make, inputs).layers
    counted = sum(one.cost.work for one in layers if one.weights)
    assert counted == counter.get_total_flops()


def test_a_small_gpt() -> None:
    n, length, width, heads, vocabulary = 2, 16, 64, 4, 65
    found = network_cost(
        lambda: mh.models.GPT(vocabulary, length, width, layers=2, heads=heads),
        meta(n, length, dtype=torch.int64),
    )
    rows, scores, size = n * length, n * heads * length * length, width // heads
    layers = by_layer(found)
    norm = (rows * (7 * width + 2), 2 * 6 + 9)
    dense = (rows * width * 2 * width, 1 + 7)
    assert layers["embedding.token", "embedding"] == (rows * width, 1)
    assert layers["embedding", "element-wise"] == (rows * width, 1)
    assert layers["block1.before_attention", "normalisation"] == norm
    for name in ("query", "key", "value", "out"):
        assert layers[f"block1.attention.{name}", "fully connected"] == dense
    mixing = scores * (2 * size - 1) + 2 * scores + n * heads * length * (5 * length - 2)
    mixing += rows * width * (2 * length - 1)
    # Scores, scale and mask, softmax, product with the values.
    depth = (1 + 4) + 2 + (2 * 4 + 3) + (1 + 4)
    assert layers["block1.attention", "attention"] == (mixing, depth)
    assert layers["block2.mlp.up", "fully connected"] == (rows * 4 * width * 2 * width, 1 + 7)
    assert layers["block2.mlp", "element-wise"] == (rows * 4 * width, 1)
    assert layers["block2.mlp.down", "fully connected"] == (rows * width * 8 * width, 1 + 9)
    assert layers["head.logits", "fully connected"] == (rows * vocabulary * (2 * width - 1), 1 + 6)
    # Two residual additions follow each other; query, key and value do not.
    assert layers["block1", "element-wise"] == (2 * rows * width, 2)
    block = norm[1] + dense[1] + depth + dense[1] + 1 + norm[1] + 8 + 1 + 10 + 1
    assert found.cost.depth == 2 + 2 * block + norm[1] + 7
    assert found.cost.work == sum(work for work, _ in layers.values())
    assert found.assumed == ()


def test_recurrent_layers_are_as_deep_as_their_sequences() -> None:
    length, inputs, hidden = 10, 256, 64
    found = network_cost(mh.models.SharedLSTM, meta(2, 2, length, inputs))
    # Products of the state, or, in the first step, of the longer inputs; then their sum, a gate,
    # a product, a sum, tanh, a product.
    first, other = 1 + 9 + 6, 1 + 7 + 6
    depth = first + (length - 1) * other
    layers = by_layer(found)
    step = (
        4 * hidden * (2 * inputs + 2 * hidden) + 4 * hidden + 4 * hidden + 3 * hidden + 2 * hidden
    )
    # Two sequences of two samples; they do not depend on each other.
    assert layers["encoder.lstm", "recurrent"] == (4 * length * step, depth)
    assert layers["merge", "fully connected"] == (2 * 2 * 128, 1 + 8)
    assert found.cost.depth == depth + 1 + 8


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(64, 8), nn.Linear(64, 8)
        self.then = nn.Linear(8, 8)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.wide(inputs) + F.relu_(self.then(self.narrow(inputs)))


def test_only_the_longest_branch_counts_for_the_depth() -> None:
    found = network_cost(Branches, meta(1, 64))
    assert found.cost.depth == (1 + 7) + (1 + 4) + 1 + 1
    assert found.cost.work == 2 * 8 * 128 + 8 * 16 + 8 + 8


def test_other_layers() -> None:
    def make() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1, bias=False),
            nn.BatchNorm2d(4),
            nn.AvgPool2d(2),
            nn.GroupNorm(2, 4),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Softmax(-1),
            nn.Dropout(0.5),
        )

    found = network_cost(make, meta(2, 3, 8, 8))
    layers = by_layer(found)
    assert layers["0", "convolution"] == (2 * 4 * 64 * (2 * 27 - 1), 1 + 5)
    assert layers["1", "normalisation"] == (4 * (7 * 128 + 2), 2 * 7 + 9)
    assert layers["2", "pooling"] == (2 * 4 * 16 * 4, 3)
    assert layers["3", "normalisation"] == (4 * (7 * 32 + 2), 2 * 5 + 9)
    assert layers["4", "pooling"] == (2 * 4 * 16, 4 + 1)
    assert layers["6", "element-wise"] == (2 * (5 * 4 - 2), 2 * 2 + 3)
    assert found.assumed == ()


def test_a_transposed_convolution_has_the_products_of_its_inputs() -> None:
    found = network_cost(lambda: nn.ConvTranspose2d(8, 4, 2, stride=2), meta(1, 8, 5, 5))
    assert found.layers[0].cost == WorkDepth(2 * 8 * 25 * 4 * 4, 1 + math.ceil(math.log2(9)))


def test_multihead_attention_of_torch() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.attention(inputs, inputs, inputs)[0]

    found = network_cost(Model, meta(2, 3, 8))
    kinds = {one.kind for one in found.layers if one.cost.work}
    assert kinds == {"attention", "fully connected"}
    assert sum(one.weights for one in found.layers) == 4 * found.parameters


def test_frozen_parameters_have_no_gradients() -> None:
    def make() -> nn.Module:
        model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 6))
        model[0].requires_grad_(False)
        return model

    first, second = network_cost(make, meta(3, 4)).layers
    assert (first.weights, first.weight_gradients) == (100, 0)
    assert (first.outputs, first.output_gradients) == (60, 0)
    assert (second.weight_gradients, second.output_gradients) == (144, 72)


def test_operations_without_a_formula_are_named() -> None:
    class Model(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs.cumsum(-1)

    found = network_cost(Model, meta(3, 4))
    assert found.assumed == ("aten::cumsum",)
    assert found.cost == WorkDepth(12, 1)


def test_a_model_that_looks_at_numbers_is_refused() -> None:
    class Model(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs * inputs.sum().item()

    with pytest.raises(ValueError, match="counted without the content of tensors"):
        network_cost(Model, meta(3, 4))


def job(**changes: object) -> mh.Job:
    fields = {
        "model": lambda: nn.Linear(20, 5),
        "optimizer": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        "loss": F.cross_entropy,
        "data": torch.utils.data.TensorDataset(torch.randn(8, 20), torch.randint(0, 5, (8,))),
        "metrics": (),
        "global_batch": 8,
        "epochs": 1,
    }
    return mh.Job(**{**fields, **changes})  # type: ignore[arg-type]


def test_a_job_has_its_first_batch_or_as_many_samples_as_asked() -> None:
    assert job_network_cost(job()).cost == WorkDepth(8 * 5 * 40, 1 + 5)
    assert job_network_cost(job(), samples=100).cost.work == 100 * 5 * 40


def test_an_objective_is_part_of_the_network() -> None:
    found = job_network_cost(
        job(loss=None, objective=lambda model, batch: (model(batch[0]) ** 2).mean())
    )
    # Squares, and the mean of 40 numbers.
    assert found.cost == WorkDepth(8 * 5 * 40 + 40 + 40, 6 + 1 + 6 + 1)
    assert found.parameters == 105
