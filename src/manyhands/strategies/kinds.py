"""The two kinds of strategies: placements and protocols.

What both kinds need of a runtime is in `strategy.needs(workers)`; code asks for the kind only where
the two differ in more than that, such as in what a worker executes.
"""

from manyhands.placements import PlacedProtocol, Placement
from manyhands.protocols import StrategyProtocol
from manyhands.strategies.catalog import Strategy


def placement_of(strategy: Strategy) -> Placement | None:
    """The strategy, if PyTorch's own engine executes it; otherwise None."""
    return strategy if isinstance(strategy, Placement) else None


def protocol_of(strategy: object) -> StrategyProtocol | None:
    """The strategy, if it exchanges messages between steps; otherwise None."""
    return strategy if isinstance(strategy, StrategyProtocol) else None


def virtual_form(strategy: Strategy, *, numbers: bool = True) -> StrategyProtocol:
    """What a strategy is on a virtual clock.

    A protocol is the same there as in a live run. What PyTorch's own engine executes live has
    another form.

    Args:
        strategy: the strategy.
        numbers: whether gradients are computed; otherwise only times are simulated.

    Raises:
        ValueError: its options are not simulated; the message names the fix.
    """
    if isinstance(strategy, StrategyProtocol):
        return strategy
    strategy.check_virtual(numbers=numbers)
    return strategy.virtual_form() or PlacedProtocol(placement=strategy)


def protocol_class_of(thing: object) -> type[StrategyProtocol] | None:
    """The class, if it is one of strategies that exchange messages; otherwise None."""
    return thing if isinstance(thing, type) and issubclass(thing, StrategyProtocol) else None
