"""The frozen recipes by which a job is trained, by name and as text."""

from manyhands.strategies.catalog import CATALOG, Strategy, names, strategy
from manyhands.strategies.kinds import placement_of, protocol_of

__all__ = ["CATALOG", "Strategy", "names", "placement_of", "protocol_of", "strategy"]
