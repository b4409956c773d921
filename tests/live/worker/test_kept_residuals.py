"""What codecs have not sent, when a group changes in the middle of a step and between steps."""

import pytest
import torch

from manyhands.live.worker.lockstep.kept_residuals import KeptResiduals


class Replica:
    """A replica whose residuals a test sets, and which notes those that it is to send."""

    def __init__(self) -> None:
        self.present = {"weight": torch.tensor([1.0, 2.0]), "bias": torch.tensor([3.0])}
        self.carried = None

    def residuals(self):
        return self.present

    def carry_over(self, residuals, workers):
        self.carried = {name: one.tolist() for name, one in residuals.items()}, workers


@pytest.mark.parametrize(
    ("steps", "ends", "repeats", "expected"),
    [
        pytest.param(True, False, True, 1.0, id="an interrupted step is repeated"),
        pytest.param(True, False, False, 9.0, id="another worker has completed it"),
        pytest.param(True, True, True, 9.0, id="after a step"),
        pytest.param(False, False, True, 9.0, id="in an evaluation"),
    ],
)
def test_residuals_are_those_of_the_step_that_comes_next(steps, ends, repeats, expected):
    replica = Replica()
    kept = KeptResiduals(replica)
    for _ in range(2):  # The copies of the first step are written again.
        kept.begin(steps=steps)
    replica.present = {"bias": replica.present["bias"], "weight": torch.tensor([9.0, 2.0])}
    if ends:
        kept.end()
    kept.leave(4).carry(replica, repeats=repeats)
    assert replica.carried == ({"weight": [expected, 2.0], "bias": [3.0]}, 4)


def test_a_replica_without_residuals_carries_nothing():
    replica = Replica()
    replica.present = {}
    kept = KeptResiduals(replica)
    kept.begin(steps=True)
    kept.leave(2).carry(replica, repeats=True)
    assert replica.carried is None
