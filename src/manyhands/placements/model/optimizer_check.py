"""Check that an optimizer steps the parts of a model as it would step the whole model.

An optimizer that works elementwise does, whatever the parts are. Any other one gets DTensors, where
it can compute what it needs of a whole tensor, if torch has its operations for DTensors. Whether
that is so is tried on small tensors, by all workers together, before the first batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyhands.engine.fake_tensors import is_fake
from manyhands.engine.tensors import gathered, is_divided, laid_as
from manyhands.failure import Refused
from manyhands.parameters.coupling import StepTrial, coupling_of, named, same

if TYPE_CHECKING:
    from manyhands.placements.bound import Bound
    from manyhands.placements.placement import Placement

_REMEDY = "use allreduce(), or an optimizer that works elementwise, such as AdamW"


_ROUGH = 0.05
"""The largest difference, as a share of a step, of an optimizer that computes in a short dtype. The
norm of a part in place of the whole tensor's is another by some ten per cent at least."""


def check_steps(bound: Bound, strategy: Placement) -> str:
    """Raise Refused, with the reason, if a step of the parts is not one of the whole model.

    Returns:
        How much it differs, in words for the log, if that is more than rounding; else "".
    """
    optimizer, workers = bound.optimizer, bound.together
    coupling = coupling_of(optimizer)
    if coupling == "element" or is_fake() or (workers is not None and workers.size == 1):
        return ""
    words = named(optimizer)
    if coupling == "all" and bound.steps_apart:
        raise Refused(
            f"a step of {words} needs all parameters together, and {strategy} steps them in parts: "
            f"{_REMEDY}"
        )
    if not any(is_divided(one) for group in optimizer.param_groups for one in group["params"]):
        return ""
    trial = StepTrial.of(optimizer)
    everything = [trial.whole(0, 1)]
    try:
        divided = trial.run(optimizer, everything, laid_as, gathered)
    except Exception as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise Refused(
            f"{words} does not work elementwise, and cannot step the tensors that {strategy} "
            f"divides among workers ({why}): {_REMEDY}"
        ) from error
    whole = trial.run(optimizer, everything)
    if same(whole, divided):
        return ""
    differs = max(
        float((one - other).norm() / (one - first).norm().clamp(min=1e-30))
        for one, other, first in zip(whole, divided, trial.tensors, strict=True)
    )
    if not differs <= _ROUGH:
        raise Refused(
            f"{words} does not work elementwise, and steps the tensors that {strategy} divides "
            f"among workers otherwise than whole ones, by {differs:.0%} of a step: {_REMEDY}"
        )
    return (
        f"{words} steps divided tensors as whole ones to {differs:.1%} of a step, by the rounding "
        "of the dtype that it computes in"
    )
