"""A model made in parts has the values of a model made whole."""

import resource
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

from manyhands.models import GPT, LeNet, ResNet50V2, SharedLSTM
from manyhands.parameters.initial.deferred import first_values, outline
from manyhands.parameters.initial.watching import Unmakeable


class Odd(nn.Module):
    """Initialised in every way at once."""

    def __init__(self) -> None:
        super().__init__()
        self.truncated = nn.Linear(6, 5)
        nn.init.trunc_normal_(self.truncated.weight)
        nn.init.trunc_normal_(self.truncated.weight, a=1.5, b=2.0)
        self.orthogonal = nn.Linear(4, 4)
        nn.init.orthogonal_(self.orthogonal.weight)
        self.truncated.bias.data.mul_(0.5).add_(0.25)
        self.drawn = nn.Parameter(torch.randn(4))
        self.embedding = nn.Embedding(7, 3, padding_idx=2)
        self.tied = nn.Linear(3, 7, bias=False)
        self.tied.weight = self.embedding.weight
        self.frozen = nn.Linear(2, 2).requires_grad_(False)
        self.register_buffer("steps", torch.arange(4.0))
        self.register_buffer("filled", torch.empty(3).fill_(2.5))


def first_row(_: str, whole: torch.Tensor) -> torch.Tensor:
    return whole[:1] if whole.dim() else whole


@pytest.mark.parametrize("held", [0, 1_000_000_000])
@pytest.mark.parametrize("make", [GPT, LeNet, SharedLSTM, Odd, lambda: ResNet50V2(10)])
def test_parts_are_those_of_the_whole(make, held):
    torch.manual_seed(3)
    whole = make()
    then = torch.rand(3)
    torch.manual_seed(3)
    sketch = outline(make, held)
    assert torch.equal(torch.get_rng_state(), torch.random.manual_seed(3).get_state())
    parts = first_values(make, sketch.numbers, first_row, held)
    assert torch.equal(torch.rand(3), then), "the random source stands where it would"
    named = [*whole.named_parameters(), *whole.named_buffers()]
    assert sorted(parts) == sorted(name for name, _ in named)
    for name, tensor in named:
        assert torch.equal(parts[name], first_row(name, tensor)), name


def test_an_outline_has_the_shape_of_the_model_and_takes_no_memory():
    sketch, whole = outline(Odd), Odd()
    for name, tensor in sketch.model.named_parameters():
        like = whole.get_parameter(name)
        assert tensor.shape == like.shape
        assert tensor.requires_grad == like.requires_grad
        assert tensor.is_meta == (name != "drawn")
    assert sketch.model.tied.weight is sketch.model.embedding.weight
    assert torch.equal(sketch.model.steps, whole.steps)


def test_one_parameter_made_from_another_that_is_gone_is_refused():
    def copied() -> nn.Module:
        model = nn.Sequential(nn.Linear(30, 30), nn.Linear(30, 30), nn.Linear(30, 30))
        model[2].weight.data.copy_(model[0].weight)
        return model

    with pytest.raises(
        Unmakeable, match=r"aten.copy_.default needs a parameter that has been freed"
    ):
        outline(copied, held=0)
    assert outline(copied).numbers, "what is still here may be used"


LIMITED = """
    import resource, sys, torch
    from manyhands.parameters.initial.deferred import first_values, outline
    from manyhands.models import GPT

    make = lambda: GPT.sized("124m")
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    limit = used + 500 * 1024 * 1024
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    if sys.argv[1] == "whole":
        make()
    numbers = outline(make).numbers
    parts = first_values(make, numbers, lambda _, whole: whole[: len(whole) // 8])
    print("PARTS", sum(part.nbytes for part in parts.values()))
"""


@pytest.mark.slow
def test_a_model_that_does_not_fit_is_made_in_parts_that_do(tmp_path):
    script = tmp_path / "limited.py"
    script.write_text(textwrap.dedent(LIMITED), encoding="utf-8")
    for how, fits in (("whole", False), ("parts", True)):
        done = subprocess.run(
            [sys.executable, script, how], capture_output=True, text=True, check=False
        )
        assert (done.returncode == 0) == fits, done.stderr
        assert ("PARTS" in done.stdout) == fits
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY
