"""The frozen recipes by which a job is trained, by name and as text."""

from manyhands.strategies.catalog import CATALOG, Strategy, names, strategy

__all__ = ["CATALOG", "Strategy", "names", "strategy"]
