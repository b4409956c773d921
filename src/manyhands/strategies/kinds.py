"""The two kinds of strategies: the only place that asks which of them one is.

All others ask a strategy what it needs: `strategy.needs(workers)`.
"""

from manyhands.placements import Placement
from manyhands.protocols import StrategyProtocol
from manyhands.strategies.catalog import Strategy


def placement_of(strategy: Strategy) -> Placement | None:
    """The strategy, if PyTorch's own engine carries it out."""
    return strategy if isinstance(strategy, Placement) else None


def protocol_of(strategy: Strategy) -> StrategyProtocol | None:
    """The strategy, if it acts by messages between steps."""
    return strategy if isinstance(strategy, StrategyProtocol) else None
