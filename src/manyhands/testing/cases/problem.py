"""The problem that simulated workers train: a quadratic function whose gradient is a formula.

The gradient of a sample is x − its target, so a run costs milliseconds, and a law can compute every
gradient again in NumPy. The parameters are one vector of float64, in as many equal pieces as there
are shards.

A problem may have four more elements in every piece, the *probes*, by which `Weighting` recognises
a wrong weight without knowing the protocol:

    AT_REST     starts at the target of all samples, so that its gradients are zero
    PLAIN       has targets of its own
    SHIFTED     the same as PLAIN, with start and targets moved by `SHIFT`
    SLOPE       has the gradient `STEEPNESS` everywhere
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray


RATE = 0.1
"""The learning rate of every case."""
PROBES = 4
"""Number of probes at the end of every piece."""
AT_REST, PLAIN, SHIFTED, SLOPE = range(-PROBES, 0)
"""Positions of the probes in a piece."""
SHIFT = 16.0
STEEPNESS = 3.0
_STARTS = (5.0, 1.0, 1.0 + SHIFT, 0.0)


def first(size: int, number: int, seed: int, *, probes: bool = False) -> NDArray[np.float64]:
    """Initial values of a piece; another seed gives other ones, except for the probes."""
    own = size - PROBES if probes else size
    values = np.arange(own, dtype=np.float64) + number + seed % 5
    return np.append(values, _STARTS) if probes else values


def with_probe_targets(targets: NDArray[np.float64], pieces: int) -> NDArray[np.float64]:
    """The targets of all samples, with those of the probes at the end of every piece."""
    samples = len(targets)
    widened = []
    for piece in np.split(targets, pieces, axis=1):
        varied = piece[:, :1]
        at_rest, slope = np.full((samples, 1), _STARTS[0]), np.zeros((samples, 1))
        widened += [piece, at_rest, varied, varied + SHIFT, slope]
    return np.concatenate(widened, axis=1)


class QuadraticModel(nn.Module):
    """A vector in as many pieces as there are shards; its output is the distance to targets."""

    def __init__(self, pieces: int, size: int, *, probes: bool = False) -> None:
        super().__init__()
        for number in range(pieces):
            here = first(size, number, torch.initial_seed(), probes=probes)
            self.register_parameter(f"piece{number}", nn.Parameter(torch.from_numpy(here)))

    def forward(self, targets: torch.Tensor) -> torch.Tensor:
        """The distance of the parameters to each target."""
        return torch.cat(list(self.parameters())) - targets


def half_square(distance: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """The mean of |x − target|² / 2."""
    return distance.square().sum() / (2 * len(distance))


def loss_with_probes(size: int) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """As `half_square`, and linear in the last element of every piece."""

    def loss(distance: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        pieces = distance.reshape(len(distance), -1, size)
        quadratic, linear = pieces[..., :SLOPE], pieces[..., SLOPE]
        return (quadratic.square().sum() / 2 + STEEPNESS * linear.sum()) / len(distance)

    return loss


class Descent:
    """SGD with momentum, with as little overhead as possible.

    It has what the parts of a model need of an optimizer: groups with rates, and a step.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], momentum: float) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": list(parameters), "lr": RATE}]
        self.state: defaultdict[nn.Parameter, dict[str, torch.Tensor]] = defaultdict(dict)
        self._momentum = momentum

    def step(self) -> None:
        """One step with the gradients of the parameters."""
        for group in self.param_groups:
            for parameter in group["params"]:
                velocity = parameter.grad
                if self._momentum:
                    velocity = velocity.clone()
                    before = self.state[parameter].get("velocity")
                    if before is not None:
                        velocity.add_(before, alpha=self._momentum)
                    self.state[parameter]["velocity"] = velocity
                parameter.data.add_(velocity, alpha=-group["lr"])
