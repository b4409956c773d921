"""A subclass of a protocol within another strategy: its methods are called, or it is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import pytest

import manyhands as mh
from manyhands.protocols import Averaging, DiLoCo, LocalSteps, Synchronous

if TYPE_CHECKING:
    from manyhands.endpoint import Endpoint, Replica

SCRIPT = """
    import json
    from dataclasses import dataclass
    from typing import ClassVar

    import torch
    import manyhands as mh
    from manyhands.protocols import DiLoCo, Move

    @mh.register
    @dataclass(frozen=True, repr=False)
    class Reluctant(DiLoCo):
        '''Go a part of the way to the mean; rounds become longer.'''

        name: ClassVar[str] = "reluctant"
        way: float = 0.25
        '''The part.'''

        def conclude(self, state):
            return [Move(by=self.way, over=state.shares)] if state.samples else []

        def interval(self, steps):
            return 1 if steps <= 2 else self.every

    torch.set_default_dtype(torch.float64)
    source = torch.Generator().manual_seed(0)
    inputs = torch.randn(48, 4, generator=source)
    data = torch.utils.data.TensorDataset(inputs, inputs @ torch.randn(4, 1, generator=source))
    job = mh.Job(
        model=lambda: torch.nn.Linear(4, 1),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5),
        loss=torch.nn.functional.mse_loss,
        data=data,
        global_batch=8,
        epochs=2,
        metrics=(),
    )

    def distance(one, other):
        return max((one[name] - other[name]).abs().max().item() for name in one)

    if __name__ == "__main__":
        own, built_in = Reluctant(every=3), DiLoCo(every=3)
        alone = mh.simulate(job, own, workers=2, output="alone").state_dict()
        plain = mh.simulate(job, built_in, workers=2, output="plain").state_dict()
        found = {"built in": distance(alone, plain)}
        within = mh.strategies.hierarchical(outer=own, islands=2)
        run = mh.simulate(job, within, workers=2, output="hierarchical-virtual")
        found["hierarchical virtual"] = distance(run.state_dict(), alone)
        run = mh.train(job, within, workers=2, output="hierarchical-live")
        found["hierarchical live"] = distance(run.state_dict(), alone)
        placed = mh.strategies.hybrid(data=2, outer=own)
        run = mh.train(job, placed, workers=2, output="hybrid-live")
        found["hybrid live"] = distance(run.state_dict(), alone)
        for name, outer in (("own", own), ("built in", built_in)):
            placed = mh.strategies.hybrid(data=2, outer=outer)
            run = mh.simulate(
                job, placed, workers=2, time_only=True, bandwidth="10mbit", output=f"time-{name}"
            )
            found[f"bytes {name}"] = run.figures()["sent"]
        print(json.dumps(found))
"""


@pytest.mark.timeout(180)
def test_the_outer_step_of_a_subclass_is_taken_live_and_virtually(run_script) -> None:
    started = run_script(SCRIPT)
    assert started.finish(150) == 0, started.text()
    found = json.loads(started.text().splitlines()[-1])
    assert found["built in"] > 1e-3
    for where in ("hierarchical virtual", "hierarchical live", "hybrid live"):
        assert found[where] < 1e-9, where
    assert found["bytes own"] > found["bytes built in"]


@dataclass(frozen=True, repr=False)
class OwnWorker(DiLoCo):
    """A worker of its own."""

    name: ClassVar[str] = "own_worker"

    async def worker(self, replica: Replica, endpoint: Endpoint) -> None:
        """Do nothing."""


@dataclass(frozen=True, repr=False)
class OwnSum(Synchronous):
    """A round of its own."""

    name: ClassVar[str] = "own_sum"

    def weigh(self, state: object) -> float:  # noqa: ARG002 - the contract
        """Half of a step."""
        return 0.5


class Changed(LocalSteps):
    """A mixin with a method of its own."""

    @property
    def counts_empty_rounds(self) -> bool:
        """Always."""
        return True


@dataclass(frozen=True, repr=False)
class Mixed(Changed, Averaging):
    """A strategy with a mixin."""

    name: ClassVar[str] = "mixed"


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: mh.strategies.hybrid(data=2, outer=OwnWorker()), r"OwnWorker overrides worker"),
        (lambda: mh.strategies.hybrid(data=2, outer=Mixed()), r"Changed overrides counts_empty"),
        (lambda: mh.strategies.hierarchical(outer=OwnWorker()), r"OwnWorker overrides worker"),
        (lambda: mh.strategies.hierarchical(outer=OwnSum()), r"OwnSum overrides weigh"),
        (
            lambda: mh.strategies.hierarchical(inner=OwnSum(), outer=Synchronous()),
            r"OwnSum overrides weigh, which is not called under hierarchical\(\)",
        ),
    ],
)
def test_methods_that_would_not_be_called_are_refused(make, why) -> None:
    with pytest.raises(ValueError, match=why):
        make()


def test_methods_that_are_called_are_not_refused() -> None:
    mh.strategies.hierarchical(inner=OwnSum(), outer=DiLoCo())
    mh.strategies.hierarchical(outer=Mixed())
