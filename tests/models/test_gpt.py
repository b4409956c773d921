import pytest
import torch
from torch.nn import functional

from manyhands.models import GPT

TOKENS = torch.randint(0, 65, (3, 20), generator=torch.Generator().manual_seed(0))


def test_gives_the_logits_that_cross_entropy_takes():
    logits = GPT()(TOKENS)
    assert logits.shape == (3, 65, 20)
    # Untrained, every token is about as likely as any other.
    loss = functional.cross_entropy(logits, TOKENS)
    assert loss.item() == pytest.approx(torch.log(torch.tensor(65.0)).item(), abs=0.2)


def test_no_position_sees_what_comes_after_it():
    model = GPT()
    changed = TOKENS.clone()
    changed[:, 12:] = 0
    before, after = model(TOKENS), model(changed)
    torch.testing.assert_close(before[:, :, :12], after[:, :, :12])
    assert not torch.allclose(before[:, :, 12:], after[:, :, 12:])


@pytest.mark.parametrize(
    ("size", "low", "high"),
    [("tiny", 3e6, 4e6), ("124m", 124e6, 165e6), ("355m", 355e6, 408e6), ("1b", 1e9, 1.03e9)],
)
def test_sizes_are_what_their_names_say(size, low, high):
    with torch.device("meta"):
        model = GPT.sized(size)
    assert low <= sum(one.numel() for one in model.parameters()) <= high


def test_the_embedding_aside_the_124m_has_the_parameters_of_gpt_2():
    # 124,439,808 with the embedding used as the last layer too.
    with torch.device("meta"):
        model = GPT.sized("124m")
    count = sum(one.numel() for one in model.parameters())
    assert count - model.head.logits.weight.numel() == 124_439_808


def test_an_unknown_size_and_heads_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="size must be one of tiny, 124m"):
        GPT.sized("7b")
    with pytest.raises(ValueError, match="divisible by heads, got width=64, heads=5"):
        GPT(heads=5)


def test_it_learns():
    torch.manual_seed(0)
    model = GPT(width=32, layers=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(TOKENS[:, :-1]), TOKENS[:, 1:])
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1
