"""Adam and AdamW with the formulas of Keras."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable


class KerasAdam(torch.optim.Optimizer):
    """Adam as Keras and the paper's efficient form have it, with decoupled weight decay.

        m ← m + (1 − β₁)(g − m)
        v ← v + (1 − β₂)(g² − v)
        w ← w − lr·weight_decay·w
        w ← w − lr·√(1 − β₂ᵗ)/(1 − β₁ᵗ) · m / (√v + ε)

    `torch.optim.Adam` adds ε after the bias correction, so its ε is larger by 1/√(1 − β₂ᵗ): by a
    factor of 32 in the first step.

    Args:
        params: parameters or groups of them.
        lr: learning rate.
        betas: decay of the two running means.
        eps: ε, Keras's `epsilon`.
        weight_decay: as of AdamW.

    Paper: Kingma, Ba, Adam: A Method for Stochastic Optimization, ICLR 2015, end of section 2.

    Example:
        >>> import torch
        >>> weight = torch.nn.Parameter(torch.ones(1))
        >>> optimizer = KerasAdam([weight], lr=0.1)
        >>> weight.grad = torch.ones(1)
        >>> optimizer.step()
        >>> round(weight.item(), 4)
        0.9
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-7,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Apply the gradients once.

        Args:
            closure: computes the loss again, as for other optimizers.

        Returns:
            The loss that the closure returned.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        first, second = group["betas"]
        gradient: Any = parameter.grad
        state["step"] += 1
        count = state["step"].item()
        state["exp_avg"].lerp_(gradient, 1 - first)
        state["exp_avg_sq"].lerp_(gradient * gradient, 1 - second)
        rate = group["lr"] * math.sqrt(1 - second**count) / (1 - first**count)
        if group["weight_decay"]:
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
        denominator = state["exp_avg_sq"].sqrt().add_(group["eps"])
        parameter.addcdiv_(state["exp_avg"], denominator, value=-rate)
