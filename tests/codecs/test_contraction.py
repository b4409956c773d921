"""What is fed back shrinks under codecs that say so, and under the others it may grow."""

import pytest
import torch

import manyhands as mh
from manyhands.codecs import CATALOG, Codec

VECTORS = {
    "normal": torch.randn(40_000, generator=torch.Generator().manual_seed(1)),
    "heavy tails": torch.randn(40_000, generator=torch.Generator().manual_seed(2))
    * torch.rand(40_000, generator=torch.Generator().manual_seed(3)).pow(6),
    "equal": torch.ones(40_000),
}


def left_over(codec: Codec, vector: torch.Tensor, seed: int) -> float:
    """The error, as a part of the vector, both squared."""
    into = torch.empty_like(vector)
    codec.decode(codec.encode(vector, seed), into)
    return float((into - vector).square().sum() / vector.square().sum())


@pytest.mark.parametrize("kind", VECTORS)
def test_the_error_is_smaller_than_the_vector(contracting, kind) -> None:
    # A threshold that is too high sends nothing, and keeps all: 1.
    assert left_over(contracting, VECTORS[kind], 7) <= 1.0


@pytest.mark.parametrize("text", ["qsgd()", "qsgd(levels=1)", "ternary()", "randomk(0.05)"])
def test_that_of_others_may_be_larger(text) -> None:
    codec = CATALOG.read(text)
    assert not codec.contracts
    assert left_over(codec, VECTORS["normal"], 7) > 1.0


@pytest.mark.parametrize("text", ["qsgd()", "ternary()", "randomk(0.05)", "qsgd(levels=1)"])
def test_training_does_not_diverge_by_answers(tmp_path, text) -> None:
    inputs = torch.randn(512, 64, generator=torch.Generator().manual_seed(0))
    job = mh.Job(
        model=lambda: torch.nn.Linear(64, 64, bias=False),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.5),
        loss=torch.nn.functional.mse_loss,
        data=torch.utils.data.TensorDataset(inputs, inputs.clone()),
        global_batch=64,
        epochs=20,
        metrics=(),
    )
    made = mh.simulate(
        job, f"synchronous(codec={text})", workers=4, output=tmp_path / "run"
    ).state_dict()
    plain = mh.simulate(job, "synchronous()", workers=4, output=tmp_path / "plain").state_dict()
    apart = (made["weight"] - plain["weight"]).norm() / plain["weight"].norm()
    assert float(apart) < 0.5


@pytest.mark.parametrize(
    "text",
    [
        "gossip(codec=ternary())",
        "easgd(codec=qsgd())",
        "easgd(codec=randomk(0.1))",
        "synchronous(codec=int4(), answer_codec=ternary())",
        "asynchronous(answer_codec=randomk(0.1))",
    ],
)
def test_differences_are_not_sent_by_a_codec_that_makes_them_grow(text) -> None:
    with pytest.raises(ValueError, match="it would grow"):
        mh.strategy(text)
