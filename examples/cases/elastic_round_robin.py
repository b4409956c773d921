"""Round-robin elastic averaging, step by step: every exchange of a worker with the centre.

    python examples/cases/elastic_round_robin.py

Three workers fit y = 2x with one parameter on the virtual clock, under `easgd(order=round_robin)`.
The algorithm itself is the library's; a worker's replica is wrapped to note its values. Each
exchange is compared with the formulas, and `--output FILE.svg` draws the timeline of the run.
"""

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from case_results import table
from torch import nn
from torch.utils.data import TensorDataset

import manyhands as mh
from manyhands.protocols.easgd import ElasticAveraging

WORKERS, ROUNDS, RATE, RHO = 3, 4, 0.1, 3.0
ALPHA = RATE * RHO


def data() -> TensorDataset:
    """Normalised inputs, and twice each as its target."""
    inputs = torch.randn(WORKERS * ROUNDS, 1, generator=torch.Generator().manual_seed(0))
    inputs = (inputs - inputs.mean()) / inputs.std(correction=0)
    return TensorDataset(inputs, 2 * inputs)


def model() -> nn.Module:
    """One parameter, filled by Xavier's rule."""
    linear = nn.Linear(1, 1, bias=False)
    nn.init.xavier_uniform_(linear.weight)
    return linear


job = mh.Job(
    model=model,
    optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=RATE),
    loss=F.mse_loss,
    data=data(),
    global_batch=WORKERS,
    epochs=1,
    metrics=(),
)


@dataclass
class Exchange:
    """One turn: a worker's parameter x and the centre, before and after."""

    worker: int
    x: float
    centre: float
    x_drawn: float
    x_stepped: float = 0.0


class NotingReplica:
    """A replica that notes its parameter whenever it is drawn towards the centre, and after it."""

    def __init__(self, replica: Any, noted: list[Exchange]) -> None:
        self._replica, self._noted = replica, noted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._replica, name)

    def draw(self, by: float) -> None:
        """Move towards the centre, as the replica does."""
        x, centre = self._x(), self._replica.beside(0)[:4].view(torch.float32).item()
        self._replica.draw(by)
        self._mine = Exchange(self._replica.rank, x, centre, self._x())
        self._noted.append(self._mine)

    def apply(self, batch: Any) -> None:
        """Take the optimizer's step, as the replica does."""
        self._replica.apply(batch)
        self._mine.x_stepped = self._x()

    def _x(self) -> float:
        return self._replica.parameter_vector(0).item()


@mh.register
@dataclass(frozen=True, repr=False)
class NotedElasticAveraging(ElasticAveraging):
    """Elastic averaging whose exchanges are noted.

    Example: `noted_easgd(order=round_robin, rho=3.0)`
    """

    name: ClassVar[str] = "noted_easgd"

    async def worker(self, replica: Any, endpoint: Any) -> None:
        """The worker's algorithm, on a replica that notes."""
        await super().worker(NotingReplica(replica, NOTED), endpoint)


NOTED: list[Exchange] = []
"""In the order of the virtual clock."""


def simulate(strategy: str) -> tuple[float, str]:
    """The centre at the end of a run under a strategy, and the run's timeline as SVG."""
    NOTED.clear()
    with tempfile.TemporaryDirectory() as folder:
        run = mh.simulate(
            job,
            f"{strategy}(order=round_robin, rho={RHO})",
            workers=WORKERS,
            times="constant(0.1)",
            bandwidth="1gbit",
            latency="10ms",
            output=Path(folder) / "run",
        )
        return run.state_dict()["weight"].item(), mh.reports.timeline(run.trace)


def printed(exchanges: list[Exchange], end: float) -> str:
    """The table: a row for each turn."""
    rows = []
    for turn, one in enumerate(exchanges):
        after = exchanges[turn + 1].centre if turn + 1 < len(exchanges) else end
        formula = one.centre + ALPHA * (one.x - one.centre)
        rows.append(
            [
                f"{turn}",
                f"{one.worker}",
                *(f"{value:.4f}" for value in (one.x, one.centre)),
                f"{one.centre:.4f} + {ALPHA:.1f}·({one.x:.4f} − {one.centre:.4f}) = {formula:.4f}",
                *(f"{value:.4f}" for value in (after, one.x_drawn, one.x_stepped)),
            ]
        )
    header = [
        *("turn", "worker j", "x_j before", "centre before", "formula of the centre"),
        *("centre after", "x_j drawn", "x_j after its step"),
    ]
    return table(header, rows)


def check(exchanges: list[Exchange], end: float) -> float:
    """The largest difference between an exchange and the formulas; turns go by rank."""
    worst = 0.0
    for turn, one in enumerate(exchanges):
        if one.worker != turn % WORKERS:
            raise ValueError(f"turn {turn} had worker {one.worker}, expected {turn % WORKERS}")
        after = exchanges[turn + 1].centre if turn + 1 < len(exchanges) else end
        pull = ALPHA * (one.x - one.centre)
        worst = max(worst, abs(after - (one.centre + pull)), abs(one.x_drawn - (one.x - pull)))
    return worst


def main() -> None:
    """Simulate, print each exchange, and compare it with the formulas."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="an SVG file for the timeline")
    asked = parser.parse_args()
    end, _ = simulate("noted_easgd")
    exchanges = list(NOTED)
    plain, picture = simulate("easgd")
    if plain != end:
        raise ValueError(f"noting changed the run: the centre ends at {end}, without at {plain}")
    if asked.output is not None:
        asked.output.write_text(picture, encoding="utf-8")
    print(f"α = η·ρ = {RATE} × {RHO} = {ALPHA:.1f}; the centre ends at {end:.4f}\n")
    print(printed(exchanges, end))
    print(f"\nlargest difference to the formulas: {check(exchanges, end):.1e}")


if __name__ == "__main__":
    main()
