"""Models are split where one tensor passes; the stages together are the model, bit for bit."""

from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn import functional

from manyhands.models import LeNet, ResidualNetwork
from manyhands.splitting import Unsplittable, chain, check_stages, measure


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, inputs):
        rows, time, width = inputs.shape
        heads = (part.view(rows, time, 4, width // 4) for part in self.mix(inputs).split(width, 2))
        query, key, value = (head.transpose(1, 2) for head in heads)
        # A constant that depends on the mode, as functions have it.
        rate = 0.5 if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(query, key, value, dropout_p=rate)
        return self.out(mixed.transpose(1, 2).reshape(rows, time, width))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.before, self.attention = nn.LayerNorm(width), Attention(width)
        self.after = nn.LayerNorm(width)
        self.dense = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, inputs):
        inputs = inputs + self.attention(self.before(inputs))
        return inputs + self.dense(self.after(inputs))


class Transformer(nn.Module):
    def __init__(self, width=16, blocks=3, longest=32):
        super().__init__()
        self.tokens, self.places = nn.Embedding(20, width), nn.Embedding(longest, width)
        self.register_buffer("scale", torch.full((), 2.0))
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 20)
        self.longest = longest

    def forward(self, tokens):
        _, time = tokens.shape
        if time > self.longest:
            raise ValueError(f"{time} tokens")
        hidden = self.tokens(tokens) + self.places(torch.arange(time, device=tokens.device))
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden * self.scale)).transpose(1, 2)


MODELS = {
    "sequence": (
        lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 4), nn.Tanh()),
        lambda: torch.randn(4, 6),
    ),
    "lenet": (LeNet, lambda: torch.randn(4, 1, 28, 28)),
    "residual": (lambda: ResidualNetwork(14), lambda: torch.randn(4, 3, 32, 32)),
    "transformer": (Transformer, lambda: torch.randint(0, 20, (4, 24))),
}


@pytest.mark.parametrize("wanted", [1, 100])
@pytest.mark.parametrize("name", MODELS)
def test_the_sections_are_the_model(name, wanted):
    make, give = MODELS[name]
    torch.manual_seed(0)
    model, inputs = make(), give()
    # Split for another batch than it is run with: no size may be frozen into it.
    pieces = chain(model, inputs[:2], wanted)
    for stages in range(1, min(4, len(pieces)) + 1):
        starts = [len(pieces) * stage // stages for stage in range(stages)]
        sections = [pieces.section(a, b) for a, b in pairwise([*starts, len(pieces)])]
        keys = [key for section in sections for key in section.state_dict()]
        assert sorted(keys) == sorted(model.state_dict())
        for training in (True, False):
            outputs, gradients = [], []
            for run in (model, nn.Sequential(*sections)):
                state = {key: value.clone() for key, value in model.state_dict().items()}
                run.train(training)
                model.zero_grad()
                torch.manual_seed(1)
                outputs.append(run(inputs))
                outputs[-1].square().sum().backward()
                gradients.append([tensor.grad.clone() for tensor in model.parameters()])
                model.load_state_dict(state)
            assert torch.equal(*outputs)
            assert all(map(torch.equal, *gradients))


def test_blocks_stay_whole_until_more_pieces_are_wanted():
    tokens = torch.randint(0, 20, (2, 24))
    few, many = (chain(Transformer(), tokens, wanted) for wanted in (2, 8))
    assert few.names[1:4] == ("blocks.0", "blocks.1", "blocks.2")
    assert "blocks.0.before" in many.names
    assert len(many) >= 8


def test_a_residual_is_never_cut_in_two():
    pieces = chain(ResidualNetwork(8), torch.randn(2, 3, 32, 32), wanted=100)
    assert len(pieces) == 9


def test_more_stages_than_layers_are_refused_with_what_stays_whole_and_why():
    class Picky(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, inputs):
            return self.one(inputs) if inputs.sum() > 0 else self.two(inputs)

    model = nn.Sequential(nn.Linear(4, 4), Picky(), nn.Linear(4, 2))
    pieces = chain(model, torch.randn(2, 4), wanted=8)
    check_stages(pieces, 3)
    with pytest.raises(Unsplittable, match=r"at most 3 stages") as caught:
        check_stages(pieces, 4)
    assert "1 (Picky) stays whole: it branches on the content of a tensor" in str(caught.value)


def test_a_model_that_cannot_be_traced_is_named_with_the_reason():
    class Picky(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(4, 4)

        def forward(self, inputs):
            return self.one(inputs) if inputs.sum() > 0 else inputs

    with pytest.raises(Unsplittable, match=r"Picky cannot be split.*branches on the content"):
        chain(Picky(), torch.randn(2, 4))


def test_layers_that_share_a_parameter_are_not_torn_apart():
    model = Transformer()
    model.head.weight = model.tokens.weight
    pieces = chain(model, torch.randint(0, 20, (2, 24)), wanted=8)
    assert len(pieces) == 1
    with pytest.raises(Unsplittable, match=r"tokens\.weight is used by tokens and by head"):
        check_stages(pieces, 2)


def test_measuring_leaves_no_trace():
    model, images = ResidualNetwork(8), torch.randn(4, 3, 32, 32)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    drawn = torch.random.get_rng_state()
    measured = measure(chain(model, images), images)
    assert torch.equal(drawn, torch.random.get_rng_state())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(tensor.grad is None for tensor in model.parameters())
    assert sum(one.parameters for one in measured) == 4 * 75_290
    assert all(one.forward > 0 and one.backward > 0 for one in measured)
    # A block keeps what its two convolutions and normalisations need, far more than it gives.
    block = next(one for one in measured if one.name == "stages.0.0")
    assert block.activations > 4 * 4 * 16 * 32 * 32


def test_a_model_without_values_is_measured_piece_by_piece():
    with torch.device("meta"):
        model = ResidualNetwork(8)
    images = torch.randn(4, 3, 32, 32)
    measured = measure(chain(model, images.to("meta")), images)
    assert all(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
    known = measure(chain(ResidualNetwork(8), images), images)
    for one, other in zip(measured, known, strict=True):
        assert (one.name, one.parameters) == (other.name, other.parameters)
        assert one.activations == other.activations
        assert one.forward > 0
